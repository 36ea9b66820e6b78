"""hopgemm for JAX: `matmul` and `dot_general` by the CUDA kernel, under every transformation of JAX.

Both work under jit, grad, jvp, vmap, scan, checkpoint, shard_map, export, Auto and Explicit meshes. On other
platforms, and for products that no strided GEMM can do in place, XLA computes the same: fp32 sums, one
rounding.

Module attribute `target`: the GPU that kernels are chosen for while a call is traced and lowered. None
(default): jax's visible CUDA GPU, else an H200; "H200"; a CUDA device ordinal; or a dict of facts, such as
{"sm_count": 114}. Functions already jitted keep what was chosen for them.

`export_checks`: pass to jax.export.export(..., disabled_checks=hopgemm.jax.export_checks).
"""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.typing import ArrayLike, DTypeLike

from . import _context, _jax_target
from . import _jax_compat as compat
from . import _jax_lowering as _jax_lowering
from ._jax_labels import join, spec_of, split
from ._jax_primitive import F32, elementwise, epilogue_p, gemm_p

__all__ = ["dot_general", "dots_saveable", "export_checks", "matmul", "target"]

_jax_target.register()

target: str | int | dict[str, Any] | None = None
export_checks = [jax.export.DisabledSafetyCheck.custom_call(_jax_target.TARGET)]

DTYPES = (np.dtype(jnp.bfloat16), np.dtype("float16"))

# The settings of hopgemm's context managers become part of the key of jit's caches: entering one retraces.
_settings = jax.make_user_context(None)
_context.on_enter.append(_settings)


# ---- from a traced program to the primitives -------------------------------------------------------------


class _Epilogue(NamedTuple):
    """alpha * product + beta * c + bias: everything static about it."""

    alpha: float
    beta: float
    names: tuple[str, ...]  # of "c", "bias": the operands that follow a and b
    c_dims: tuple[int, ...]  # the result's dimensions that c has
    out_dtype: np.dtype[Any]

    def spelled(self, out: str) -> str:
        """The primitive's parameter for a result labelled `out`."""
        labels = {"c": "".join(out[i] for i in self.c_dims), "bias": out[-1:]}
        return ",".join(f"{name}={labels[name]}" for name in self.names)


def _fp32_sums(precision: Any) -> bool:
    return precision is None or precision in (lax.Precision.DEFAULT, (lax.Precision.DEFAULT,) * 2)


def _is_ours(eqn: Any) -> bool:
    types = [v.aval.dtype for v in eqn.invars]
    return (
        eqn.primitive is compat.dot_general_p
        and _fp32_sums(eqn.params["precision"])
        and types[0] == types[1]
        and types[0] in DTYPES
        and eqn.outvars[0].aval.dtype in (types[0], F32)
    )


def _run(
    fun: Callable[..., Any],
    kwargs: Any,
    options: _jax_target.Options,
    compute_dtype: Any,
    epilogue: _Epilogue | None,
    *args: Any,
) -> Any:
    """Trace fun(a, b), then run that program with each product the kernel takes bound to our primitives.

    So JAX checks, broadcasts, casts varying axes and refuses; nothing here has to follow its rules.
    """
    a, b, *extras = compat.varying_alike(*args) if args[2:] else args
    types = [jax.typeof(x) for x in (a, b)]
    if compute_dtype is not None:
        types = [t.update(dtype=compute_dtype) for t in types]
    jaxpr = jax.make_jaxpr(functools.partial(fun, **dict(kwargs)))(*types).jaxpr
    env = dict(zip(jaxpr.invars, (a, b)))
    uses = collections.Counter(v for e in jaxpr.eqns for v in e.invars if not hasattr(v, "val"))
    transposes = {e.invars[0]: e for e in jaxpr.eqns if e.primitive is compat.transpose_p}
    fused, out_var = set(), jaxpr.outvars[0]
    explicit = AxisType.Explicit in out_var.aval.sharding.mesh.axis_types
    for eqn in jaxpr.eqns:
        if id(eqn) in fused:
            continue
        ins = [v.val if hasattr(v, "val") else env[v] for v in eqn.invars]
        result, p = eqn.outvars, eqn.params
        if not _is_ours(eqn):
            # Traced with compute_dtype's types: what XLA multiplies is rounded to them, too.
            ins = [lax.convert_element_type(x, v.aval.dtype) for x, v in zip(ins, eqn.invars)]
            outs = eqn.primitive.bind(*ins, **p)
            env.update(zip(result, outs if eqn.primitive.multiple_results else [outs]))
            continue
        lhs, rhs, out = split(spec_of(p["dimension_numbers"], *(v.aval.ndim for v in eqn.invars)))
        sharding, after = p["out_sharding"], transposes.get(result[0])
        if after is not None and uses[result[0]] == 1 and result[0] is not out_var:
            perm, result = after.params["permutation"], after.outvars  # the result's own order, no transpose
            out, sharding = "".join(out[i] for i in perm), compat.permuted(sharding, perm)
            fused.add(id(after))
        params = dict(
            spec=join(lhs, rhs, out),
            out_dtype=result[0].aval.dtype,
            options=options,
            compute_dtype=eqn.invars[0].aval.dtype,
        )
        if epilogue is not None and result[0] is out_var and not explicit:
            params.update(epilogue=epilogue.spelled(split(params["spec"])[2]), out_dtype=epilogue.out_dtype)
            return epilogue_p.bind(*ins, *extras, alpha=epilogue.alpha, beta=epilogue.beta, **params)
        env[result[0]] = gemm_p.bind(*ins, out_sharding=sharding, **params)
    d = env[out_var]
    if epilogue is None:
        return d
    labels = "".join(chr(97 + i) for i in range(d.ndim))
    return elementwise(
        d,
        extras,
        out_labels=labels,
        epilogue=epilogue.spelled(labels),
        out_dtype=epilogue.out_dtype,
        alpha=epilogue.alpha,
        beta=epilogue.beta,
    )


@functools.cache  # the jitted entry caches the trace, per context, as jit does
def _entry(*static: Any) -> Any:
    return jax.jit(functools.partial(_run, *static), inline=True)


# ---- arguments -------------------------------------------------------------------------------------------


def _options(
    batch_invariant: bool | None, fallback: bool | None, sm_limit: int | None, config: str | None
) -> _jax_target.Options:
    settings = _context.current()
    if sm_limit is not None:
        if isinstance(sm_limit, bool) or not hasattr(sm_limit, "__index__"):
            raise TypeError(
                f"hopgemm.jax: sm_limit is {sm_limit!r} ({type(sm_limit).__name__}); "
                "must be an int, 0: all SMs"
            )
        if sm_limit < 0:
            raise ValueError(f"hopgemm.jax: sm_limit is {sm_limit}; must be 0 (all SMs) or more")
    for name, flag in (("batch_invariant", batch_invariant), ("fallback", fallback)):
        if flag is not None and not isinstance(flag, bool):
            raise TypeError(
                f"hopgemm.jax: {name} is {flag!r} ({type(flag).__name__}); must be a bool or None"
            )
    if config is not None and not isinstance(config, str):
        raise TypeError(f"hopgemm.jax: config is a {type(config).__name__}; must be a config's name or None")
    return _jax_target.Options(
        "" if config in (None, "auto") else config,
        settings.sm_limit if sm_limit is None else operator.index(sm_limit),
        settings.batch_invariant if batch_invariant is None else batch_invariant,
        settings.fallback if fallback is None else fallback,
    )


def _found(a: Any, b: Any) -> str:
    what = [f"{x.dtype}{tuple(x.shape)}" if isinstance(x, jax.Array) else type(x).__name__ for x in (a, b)]
    return f"hopgemm.jax.matmul: a is {what[0]} and b is {what[1]}"


def _check_operands(a: Any, b: Any) -> None:
    """TypeError or ValueError unless a and b are two 16-bit arrays of one dtype whose shapes fit."""
    if not (isinstance(a, jax.Array) and isinstance(b, jax.Array)):
        raise TypeError(f"{_found(a, b)}; both must be jax.Array. Convert with jnp.asarray")
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        rule = "both must be bfloat16 or both float16, nothing is promoted. Convert with .astype"
        raise TypeError(f"{_found(a, b)}; {rule}")
    x, y = a.shape, b.shape
    if not x or not y:
        raise ValueError(f"{_found(a, b)}; both must have at least 1 dimension. Multiply by a scalar with *")
    inner = y[-2] if y[1:] else y[0]
    if x[-1] != inner and isinstance(x[-1], int) and isinstance(inner, int):
        which = "second to last dimension" if y[1:] else "dimension"
        raise ValueError(
            f"{_found(a, b)}; a's last dimension ({x[-1]}) must equal b's {which} ({inner}). "
            "Transpose with jnp.swapaxes or use hopgemm.jax.dot_general"
        )
    for i, j in zip(x[-3::-1], y[-3::-1]):
        if i != j and isinstance(i, int) and isinstance(j, int) and 1 not in (i, j):
            rule = f"batch dimensions must be equal or 1, found {i} and {j}. Reshape or broadcast one"
            raise ValueError(f"{_found(a, b)}; {rule}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"hopgemm.jax.matmul: {name} is traced; it must be a Python number, since it is compiled into "
            "the call. Multiply the result, or mark it static"
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"hopgemm.jax.matmul: {name} is {value!r} ({type(value).__name__}); must be a number"
        ) from None


def _result_shape(a: Any, b: Any) -> tuple[Any, ...]:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))


def _check_extra(name: str, x: Any, out_dtype: Any) -> None:
    if not isinstance(x, jax.Array):
        raise TypeError(
            f"hopgemm.jax.matmul: {name} is a {type(x).__name__}; must be a jax.Array. "
            "Convert with jnp.asarray"
        )
    if x.dtype not in (out_dtype, F32):
        raise TypeError(
            f"hopgemm.jax.matmul: {name} is {x.dtype}; must be the result's dtype ({out_dtype}) or float32. "
            "Convert with .astype"
        )


def _with_epilogue(
    a: Any, b: Any, bias: Any, c: Any, alpha: float, beta: float, out_dtype: Any
) -> tuple[_Epilogue | None, tuple[Any, ...]]:
    """What is static about alpha, beta, c and bias, and the arrays; (None, ()) for the plain product."""
    if c is None and beta != 0:
        raise ValueError(
            f"hopgemm.jax.matmul: beta is {beta} and c is None; beta needs c. Pass c or leave beta 0"
        )
    shape, extras, c_dims = _result_shape(a, b), {}, ()
    if c is not None:
        _check_extra("c", c, out_dtype)
        lead = len(shape) - c.ndim
        if lead < 0 or any(x != 1 and x != y for x, y in zip(c.shape, shape[lead:])):
            raise ValueError(
                f"hopgemm.jax.matmul: c has shape {c.shape}; must broadcast to the result's {shape}. "
                "Reshape it"
            )
    if c is not None and beta != 0:  # beta == 0 never reads c
        ones = [i for i, (x, y) in enumerate(zip(c.shape, shape[lead:])) if x == 1 and y != 1]
        c_dims = tuple(lead + i for i in range(c.ndim) if i not in ones)
        extras["c"] = lax.squeeze(c, ones) if ones else c
    if bias is not None:
        _check_extra("bias", bias, out_dtype)
        if b.ndim < 2 or bias.shape != b.shape[-1:]:
            raise ValueError(
                f"hopgemm.jax.matmul: bias has shape {bias.shape} and b {b.shape}; bias must be (N,), "
                "one value for each column of b. Reshape it, or pass it as c with beta=1"
            )
        extras["bias"] = bias
    if not extras and alpha == 1:
        return None, ()
    return _Epilogue(alpha, beta, tuple(extras), c_dims, out_dtype), tuple(extras.values())


# ---- entries ---------------------------------------------------------------------------------------------


def matmul(
    a: jax.Array,
    b: jax.Array,
    /,
    *,
    bias: jax.Array | None = None,
    c: jax.Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: None = None,
    out_dtype: DTypeLike | None = None,
    batch_invariant: bool | None = None,
    fallback: bool | None = None,
    sm_limit: int | None = None,
    config: str | None = None,
) -> jax.Array:
    """alpha * a @ b + beta * c + bias, summed in fp32 and rounded once. Shapes are those of jnp.matmul.

    Args:
        a: (..., M, K) or (K,), bfloat16 or float16.
        b: (..., K, N) or (K,), of a's dtype; batch dimensions broadcast.
        bias: (N,), added to every row; of the result's dtype or float32.
        c: broadcasts to the result; its dtype or float32. Not read where beta is 0.
        alpha, beta: Python numbers (they are compiled into the call).
        out: always None: JAX arrays are immutable, so anything else is a TypeError.
        out_dtype: a's dtype (None) or float32.
        batch_invariant, fallback, sm_limit: None: the enclosing `with` block's setting, else the
            environment's.
        config: name of one compiled kernel for this product (gradients choose their own); None: chosen while
            lowering.

    Raises:
        TypeError: operands of two dtypes or an unsupported one, `out=`, a traced alpha or beta.
        ValueError: shapes that do not fit, or a config that cannot run this product.
        RuntimeError: the GPU is not compute capability 9.0 or its driver is under 580, and fallback is off.
    """
    if out is not None:
        raise TypeError(
            "hopgemm.jax.matmul: out= was given, but JAX arrays are immutable. Use the returned array, and "
            "donate_argnums to reuse memory"
        )
    _check_operands(a, b)
    out_dtype = a.dtype if out_dtype is None else np.dtype(out_dtype)
    if out_dtype not in (a.dtype, F32):
        raise TypeError(f"hopgemm.jax.matmul: out_dtype is {out_dtype}; must be {a.dtype} (a's) or float32")
    options = _options(batch_invariant, fallback, sm_limit, config)
    alpha, beta = _number("alpha", alpha), _number("beta", beta)
    epilogue, extras = None, ()
    if bias is not None or c is not None or alpha != 1 or beta != 0:
        epilogue, extras = _with_epilogue(a, b, bias, c, alpha, beta, out_dtype)
    # DEFAULT, not None: jax_default_matmul_precision would take the product away from the kernel.
    kwargs = (
        ("precision", lax.Precision.DEFAULT),
        ("preferred_element_type", out_dtype if epilogue is None else F32),
    )
    d: jax.Array = _entry(jnp.matmul, kwargs, options, None, epilogue)(a, b, *extras)
    return d


def _hashable(x: Any) -> Any:
    return tuple(map(_hashable, x)) if isinstance(x, (tuple, list)) else operator.index(x)


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Any = None,
    compute_dtype: DTypeLike | None = None,
    batch_invariant: bool | None = None,
    fallback: bool | None = None,
    sm_limit: int | None = None,
    config: str | None = None,
) -> jax.Array:
    """lax.dot_general by the kernel: its arguments, checks and result type; the options are `matmul`'s.

    Products the kernel does not take (other dtypes, a precision, shapes that would need a copy) are XLA's.

    `compute_dtype`: operands of another float type are rounded to it inside the product, and their gradients
    come back in their own type: fp32 weights, a bfloat16 product and fp32 weight gradients.
    """
    kwargs = (
        ("dimension_numbers", _hashable(dimension_numbers)),
        ("precision", precision),
        ("preferred_element_type", preferred_element_type),
        ("out_sharding", out_sharding),
    )
    options = _options(batch_invariant, fallback, sm_limit, config)
    computed = None if compute_dtype is None else np.dtype(compute_dtype)
    d: jax.Array = _entry(lax.dot_general, kwargs, options, computed, None)(lhs, rhs)
    return d


def dots_saveable(prim: Any, *avals: Any, **params: Any) -> bool:
    """A jax.checkpoint policy: JAX's own dots_saveable knows lax's products only, this one adds ours."""
    return prim in (gemm_p, epilogue_p) or jax.checkpoint_policies.dots_saveable(prim, *avals, **params)
