"""`hopgemm.jax.plan`: which products of a function the kernel takes, which XLA computes, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
from jax.sharding import AxisType

from . import _jax_compat as compat
from . import _jax_lowering, _jax_target
from ._jax_labels import spec_of
from ._jax_primitive import F32, epilogue_p, gemm_p
from ._jax_trace import why_not
from ._plan import Plan


class Product(NamedTuple):
    """One product of a traced function.

    spec: its dimensions as labels, "ab,bc->ac".
    operands: types and shapes, "bfloat16[16,8] float32[8,24]"; of all devices together.
    by: who computes it on a CUDA device.
    reason: why it is XLA's, or who chose the kernel's config.
    plan: what the kernel runs; None for XLA's products, symbolic sizes, and operands that are sharded over
        Auto or Explicit axes, where each device plans its own part.
    """

    spec: str
    operands: str
    by: Literal["kernel", "xla"]
    reason: str
    plan: Plan | None

    def __str__(self) -> str:
        config = f" {self.plan.config}" if self.plan is not None and self.plan.config else ""
        return f"{self.spec} of {self.operands}: {self.by}{config} ({self.reason})"


def plan(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Product, ...]:
    """Every product of fun(*args, **kwargs), in the order of the program; launches nothing, needs no GPU.

    `fun` is anything that can be traced, jitted or differentiated functions too; the arguments are arrays or
    jax.ShapeDtypeStruct. Products of jax.numpy and lax that hopgemm never saw are listed as XLA's. Planned
    for `hopgemm.jax.target`. A product in the body of a loop is listed once. Shardings count as far as JAX's
    types show them: over Auto axes, inside jax.set_mesh.

    RuntimeError where the target cannot run the kernel and fallback is off.
    """
    return tuple(_products(jax.make_jaxpr(fun)(*args, **kwargs).jaxpr))


def _products(jaxpr: Any) -> Iterator[Product]:
    for eqn in jaxpr.eqns:
        if eqn.primitive is compat.dot_general_p:
            reason = why_not(eqn) or "multiplied by lax.dot_general, not by hopgemm"
            spec = spec_of(eqn.params["dimension_numbers"], *(v.aval.ndim for v in eqn.invars))
            yield Product(spec, _types(eqn), "xla", reason, None)
        elif eqn.primitive in (gemm_p, epilogue_p):
            by, reason, planned = _ours(eqn)
            yield Product(eqn.params["spec"], _types(eqn), by, reason, planned)
        else:
            for inner in compat.inner_jaxprs(eqn):
                yield from _products(inner)


def _types(eqn: Any) -> str:
    return " ".join(f"{v.aval.dtype}[{','.join(map(str, v.aval.shape))}]" for v in eqn.invars[:2])


def _ours(eqn: Any) -> tuple[Literal["kernel", "xla"], str, Plan | None]:
    """Who computes a product bound to our primitives, why, and the plan: the rules of _jax_lowering.py."""
    params, avals, out = eqn.params, [v.aval for v in eqn.invars], eqn.outvars[0].aval
    avals[:2] = [x.update(dtype=params["compute_dtype"]) for x in avals[:2]]
    mesh, spec, epilogue = out.sharding.mesh, params["spec"], params.get("epilogue", "")
    alpha, beta = params.get("alpha", 1.0), params.get("beta", 0.0)
    kinds = {*mesh.axis_types}
    sharded = mesh.size > 1 and kinds != {AxisType.Manual}
    partitioned = sharded and AxisType.Auto in kinds
    note = ""
    alone = sharded or _jax_lowering.why_xla(avals, out, spec, epilogue, partitioned)
    if eqn.primitive is epilogue_p and alone:
        epilogue, alpha, beta, note = "", 1.0, 0.0, "; alpha, c and bias are XLA's"
        avals, out = avals[:2], out.update(dtype=F32)
    if reason := _jax_lowering.why_xla(avals, out, spec, epilogue, partitioned):
        return "xla", reason + note, None
    if refused := _jax_target.refusal():
        if not params["options"].fallback:
            raise RuntimeError(refused)
        return "xla", refused + note, None
    if sharded:
        return "kernel", "each device plans its own part" + note, None
    if any(not isinstance(size, int) for x in (*avals, out) for size in x.shape):
        return "kernel", "chosen at launch: sizes are symbolic" + note, None
    planned = Plan(**_jax_target.describe(spec, epilogue, avals, out, params["options"], alpha, beta))
    return "kernel", planned.reason + note, planned
