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

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from . import _cache, _context, _jax_arguments, _jax_target
from . import _jax_lowering as _jax_lowering
from ._jax_compat import dot_general_p
from ._jax_plan import Product, plan
from ._jax_primitive import F32, as_dot_general, epilogue_p, gemm_p
from ._jax_trace import entry

__all__ = [
    "Product",
    "checkpoint_policy",
    "dot_general",
    "dot_general_with",
    "dots_saveable",
    "export_checks",
    "matmul",
    "plan",
    "replace_linear",
    "target",
]

Model = TypeVar("Model")

_jax_target.register()
_cache.install()

target: str | int | dict[str, Any] | None = None
export_checks = [jax.export.DisabledSafetyCheck.custom_call(_jax_target.TARGET)]

# The settings of hopgemm's context managers become part of the key of jit's caches: entering one retraces.
_settings = jax.make_user_context(None)
_context.on_enter.append(_settings)


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
    out_sharding: Any = None,
) -> jax.Array:
    """alpha * a @ b + beta * c + bias, summed in fp32 and rounded once. Shapes are those of jnp.matmul.

    Args:
        a: (..., M, K) or (K,), bfloat16 or float16.
        b: (..., K, N) or (K,), of a's dtype; batch dimensions broadcast.
        bias: (N,), added to every row; of a's dtype or float32.
        c: broadcasts to the result; of a's dtype or float32. Not read where beta is 0.
        alpha, beta: Python numbers (they are compiled into the call).
        out: always None: JAX arrays are immutable, so anything else is a TypeError.
        out_dtype: a's dtype (None) or float32.
        batch_invariant, fallback, sm_limit: None: the enclosing `with` block's setting, else the
            environment's.
        config: name of one compiled kernel for this product (gradients choose their own); None: chosen while
            lowering.
        out_sharding: as in jnp.matmul: a PartitionSpec or NamedSharding of Explicit mesh axes, or None.

    Raises:
        TypeError: operands of two dtypes or an unsupported one, `out=`, a traced alpha or beta.
        ValueError: shapes that do not fit, or a config that cannot run this product; shardings as jnp.matmul.
        RuntimeError: the GPU is not compute capability 9.0 or its driver is under 580, and fallback is off.
    """
    if out is not None:
        raise TypeError(
            "hopgemm.jax.matmul: out is given; JAX arrays are immutable. Use the returned array, and "
            "donate_argnums to reuse memory"
        )
    _jax_arguments.check_operands(a, b)
    out_dtype = a.dtype if out_dtype is None else np.dtype(out_dtype)
    if out_dtype not in (a.dtype, F32):
        raise TypeError(
            f"hopgemm.jax.matmul: out_dtype is {out_dtype}; must be {a.dtype} (a's) or float32. "
            "Cast the result with .astype"
        )
    options = _jax_arguments.options(batch_invariant, fallback, sm_limit, config)
    alpha, beta = _jax_arguments.number("alpha", alpha), _jax_arguments.number("beta", beta)
    epilogue, extras = None, ()
    if bias is not None or c is not None or alpha != 1 or beta != 0:
        epilogue, extras = _jax_arguments.with_epilogue(a, b, bias, c, alpha, beta, out_dtype)
    # DEFAULT, not None: jax_default_matmul_precision would take the product away from the kernel.
    kwargs = (
        ("precision", lax.Precision.DEFAULT),
        ("preferred_element_type", out_dtype if epilogue is None else F32),
        ("out_sharding", out_sharding),
    )
    if _context.current().autotune:
        _tuning().before_matmul(a, b, out_dtype, options)
    d: jax.Array = entry(jnp.matmul, kwargs, options, None, epilogue)(a, b, *extras)
    return d


def _tuning() -> Any:
    from . import _tune_jax  # it imports this module

    return _tune_jax


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
) -> jax.Array:
    """lax.dot_general by the kernel: its signature, checks, refusals and result type.

    The kernel takes two bfloat16 or two float16 operands, a result of their dtype or float32, a precision of
    None, DEFAULT or the algorithm BF16_BF16_F32 (F16_F16_F32), and dimensions that make a strided GEMM
    without a copy. All else is XLA's, without a word; `plan` says which and why. Options: `dot_general_with`.
    """
    return _DEFAULT(lhs, rhs, dimension_numbers, precision, preferred_element_type, out_sharding=out_sharding)


def dot_general_with(
    *,
    compute_dtype: DTypeLike | None = None,
    batch_invariant: bool | None = None,
    fallback: bool | None = None,
    sm_limit: int | None = None,
    config: str | None = None,
) -> Callable[..., jax.Array]:
    """A `dot_general` with options, for whatever takes a dot_general: Flax, einsum's `_dot_general`, MaxText.

    `compute_dtype`: operands of another float type are rounded to it inside the product, and their gradients
    come back in their own type: fp32 weights, a bfloat16 product and fp32 weight gradients. The other options
    are `matmul`'s, and so are their errors. Equal options give the same function.
    """
    _jax_arguments.options(batch_invariant, fallback, sm_limit, config)  # refused here, not at the first call
    computed = None if compute_dtype is None else np.dtype(compute_dtype)
    return _dot_general_with(computed, batch_invariant, fallback, sm_limit, config)


@functools.cache  # jit and Flax keep the function as a static value
def _dot_general_with(
    compute_dtype: np.dtype[Any] | None,
    batch_invariant: bool | None,
    fallback: bool | None,
    sm_limit: int | None,
    config: str | None,
) -> Callable[..., jax.Array]:
    @functools.wraps(dot_general)
    def product(
        lhs: ArrayLike,
        rhs: ArrayLike,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: DTypeLike | None = None,
        *,
        out_sharding: Any = None,
    ) -> jax.Array:
        kwargs = (
            ("dimension_numbers", _hashable(dimension_numbers)),
            ("precision", precision),
            ("preferred_element_type", preferred_element_type),
            ("out_sharding", out_sharding),
        )
        options = _jax_arguments.options(batch_invariant, fallback, sm_limit, config)
        if _context.current().autotune:
            _tuning().before_dot_general(lhs, rhs, kwargs, options)
        d: jax.Array = entry(lax.dot_general, kwargs, options, compute_dtype, None)(lhs, rhs)
        return d

    return product


_DEFAULT = dot_general_with()


def replace_linear(model: Model, *, compute_dtype: DTypeLike | None = None) -> Model:
    """An Equinox model with each equinox.nn.Linear's product computed by `dot_general`.

    Weights, biases and the tree's structure of leaves stay as they are, so optimizers and checkpoints go on.
    With `compute_dtype` the product is computed in it whatever the weights' dtype is, as in
    `dot_general_with`; the result has the dtype that equinox.nn.Linear would give.

    ValueError where the model holds no equinox.nn.Linear; ImportError without Equinox.
    """
    from . import _jax_equinox

    replaced: Model = _jax_equinox.replace_linear(model, dot_general_with(compute_dtype=compute_dtype))
    return replaced


def checkpoint_policy(policy: Callable[..., bool]) -> Callable[..., bool]:
    """A jax.checkpoint policy that takes our products for `jax.lax.dot_general`s, and else is `policy`.

    As it is, a policy of JAX that saves products (`dots_with_no_batch_dims_saveable`, for one) does not know
    ours, and has them computed again.
    """

    def knowing(prim: Any, *avals: Any, **params: Any) -> bool:
        if prim in (gemm_p, epilogue_p):
            own, _ = as_dot_general(params["spec"], params["out_dtype"], params.get("out_sharding"))
            return policy(dot_general_p, *avals[:2], **own)
        return policy(prim, *avals, **params)

    return knowing


dots_saveable = checkpoint_policy(jax.checkpoint_policies.dots_saveable)
"""A jax.checkpoint policy: JAX's own dots_saveable knows lax's products only, this one adds ours."""
