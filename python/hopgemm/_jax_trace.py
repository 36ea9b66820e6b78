"""From the program that JAX traces of a product to our primitives.

JAX decides what is legal: its own jnp.matmul or lax.dot_general is traced with the caller's arguments, and
each product in that program which the kernel can take is bound to our primitive instead.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType

from . import _jax_compat as compat
from ._jax_labels import join, spec_of, split
from ._jax_primitive import F32, elementwise, epilogue_p, gemm_p
from ._jax_target import Options

# The operand types of the kernel, and JAX's name for what it computes: one pass, summed in fp32.
FP32_SUMS = {
    np.dtype(jnp.bfloat16): lax.DotAlgorithmPreset.BF16_BF16_F32,
    np.dtype("float16"): lax.DotAlgorithmPreset.F16_F16_F32,
}


class Epilogue(NamedTuple):
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


def _fp32_sums(precision: Any, dtype: Any) -> bool:
    """Does this precision of lax.dot_general mean products of `dtype` that are summed in fp32?"""
    if precision is None or precision in (lax.Precision.DEFAULT, (lax.Precision.DEFAULT,) * 2):
        return True
    if isinstance(precision, lax.DotAlgorithm):
        types = (precision.lhs_precision_type, precision.rhs_precision_type, precision.accumulation_type)
        one_pass = precision.num_primitive_operations == 1
        return one_pass and [np.dtype(t) for t in types] == [dtype, dtype, F32]
    return precision in (lax.DotAlgorithmPreset.DEFAULT, FP32_SUMS[dtype])


def why_not(eqn: Any) -> str:
    """Why a dot_general of a traced program is XLA's, whatever its shapes; "" if it may be the kernel's."""
    lhs, rhs = (v.aval.dtype for v in eqn.invars)
    out, precision = eqn.outvars[0].aval.dtype, eqn.params["precision"]
    if lhs != rhs or lhs not in FP32_SUMS:
        return f"operands are {lhs} and {rhs}; the kernel takes two bfloat16 or two float16"
    if out not in (lhs, F32):
        return f"the result is {out}; the kernel's is {lhs} or float32"
    if not _fp32_sums(precision, lhs):
        name = FP32_SUMS[lhs].name
        return f"precision is {precision}; the kernel has None, DEFAULT and {name}: sums in float32"
    return ""


def _run(
    fun: Callable[..., Any],
    kwargs: Any,
    options: Options,
    compute_dtype: Any,
    epilogue: Epilogue | None,
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
        if eqn.primitive is not compat.dot_general_p or why_not(eqn):
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
def entry(*static: Any) -> Any:
    return jax.jit(functools.partial(_run, *static), inline=True)
