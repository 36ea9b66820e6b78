"""How the primitives reach the kernel, by platform: the custom call on CUDA, XLA's product elsewhere.

One device, or shard_map over all axes: the custom call alone. Explicit axes: the types say everything, a
shard_map inside the lowering. Auto axes: custom_partitioning, called inside the primitive, where no
derivative or vmap ever sees it. Partial sums cross devices in the result's type.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from . import _jax_compat as compat
from . import _jax_target as target
from ._jax_labels import groups, split
from ._jax_primitive import F32, as_dot_general, decomposed, epilogue_p, gemm_p, local_p

for _p in (gemm_p, epilogue_p):
    compat.needs_devices(_p)


# ---- XLA's product ---------------------------------------------------------------------------------------


def _xla(
    lhs: Any,
    rhs: Any,
    *,
    spec: str,
    out_dtype: Any,
    compute_dtype: Any,
    out_sharding: Any,
    upcast: bool,
    options: target.Options,
) -> Any:
    """The same product by XLA: fp32 sums, one rounding. `upcast` multiplies in fp32 too."""
    own, perm = as_dot_general(spec, F32, out_sharding)
    lhs, rhs = lhs.astype(compute_dtype), rhs.astype(compute_dtype)
    if upcast:
        lhs, rhs = lhs.astype(F32), rhs.astype(F32)
    return lax.transpose(lax.dot_general(lhs, rhs, **own), perm).astype(out_dtype)


def _lower_xla(ctx: Any, lhs: Any, rhs: Any, *, upcast: bool = False, **params: Any) -> Any:
    f = functools.partial(_xla, upcast=upcast, **params)
    return compat.lower_fun(f, multiple_results=False)(ctx, lhs, rhs)


def _lower_decomposed(ctx: Any, *args: Any, **params: Any) -> Any:
    return compat.lower_fun(functools.partial(decomposed, **params), multiple_results=False)(ctx, *args)


# ---- many devices ----------------------------------------------------------------------------------------


@functools.partial(compat.custom_partitioning, static_argnums=(2,))
def _partitioned(lhs: Any, rhs: Any, params: Any) -> Any:
    return local_p.bind(lhs, rhs, summed=(), **dict(params))


def _blocks(params: Any, mesh: Any, *specs: Any) -> Any:
    """What one device computes, and the shardings of lhs, rhs and result.

    `specs` are those of operands and result in this order: an axis serves the first letter that has it.
    """
    labels, axes, used = split(params["spec"]), {}, set[str]()
    for letters, spec in zip(labels, specs):
        for c, axis in zip(letters, compat.partitions(spec, len(letters))):
            names = {axis} if isinstance(axis, str) else {*(axis or ())}
            if names and c not in axes and not used & names:
                axes[c] = axis
                used |= names
    split_k = [axes[c] for c in labels[0] if c not in labels[2] and c in axes]
    summed = tuple(n for a in split_k for n in ((a,) if isinstance(a, str) else a))
    local = functools.partial(local_p.bind, summed=summed, **dict(params, out_sharding=None))
    return local, [NamedSharding(mesh, PartitionSpec(*map(axes.get, letters))) for letters in labels]


def _label(params: Any) -> str:
    """What the callback computes, beyond the types and the sharding rule, which the program shows."""
    options = params["options"]
    names = ("config", "sm_limit", "batch_invariant")
    return " ".join(f"{name}={getattr(options, name)}" for name in names)


def _partition(params: Any, mesh: Any, args: Any, result: Any) -> Any:
    """Auto axes: called by XLA's partitioner once Shardy has settled the shardings."""
    local, (lhs, rhs, out) = _blocks(dict(params), mesh, *(x.sharding.spec for x in (*args, result)))
    return mesh, local, out, (lhs, rhs)


_partitioned.def_partition(
    partition=_partition,
    sharding_rule=lambda params, *_: "{}, {} -> {}".format(*map(" ".join, split(dict(params)["spec"]))),
)


def _explicit(lhs: Any, rhs: Any, out_aval: Any, params: Any) -> Any:
    """Explicit axes: a shard_map over them that follows the types. No callback: it exports and caches."""
    mesh = out_aval.sharding.mesh
    local, (left, right, out) = _blocks(
        params, mesh, *(a.sharding.spec for a in (jax.typeof(lhs), jax.typeof(rhs), out_aval))
    )
    names = {n for n, t in zip(mesh.axis_names, mesh.axis_types) if t == AxisType.Explicit}
    with jax.sharding.use_abstract_mesh(mesh):
        lhs, rhs = jax.sharding.reshard(lhs, left), jax.sharding.reshard(rhs, right)
        d = jax.shard_map(
            local, in_specs=(left.spec, right.spec), out_specs=out.spec, axis_names=names, check_vma=False
        )(lhs, rhs)
        return jax.sharding.reshard(d, out_aval.sharding)


# ---- the kernel ------------------------------------------------------------------------------------------


def _axis_kinds(aval: Any) -> set[Any]:
    # Empty: no mesh, so one device, or Auto shardings that JAX's types do not show.
    return {*aval.sharding.mesh.axis_types}


def _one_device(ctx: Any) -> bool:
    """Does the program compute on whole local arrays? (One device, or shard_map over all axes.)"""
    kinds = _axis_kinds(ctx.avals_out[0])
    return kinds == {AxisType.Manual} or (AxisType.Explicit not in kinds and compat.num_devices(ctx) == 1)


def _partitions_automatically(ctx: Any) -> bool:
    kinds = _axis_kinds(ctx.avals_out[0])
    return not _one_device(ctx) and (AxisType.Explicit not in kinds or AxisType.Auto in kinds)


def why_xla(
    avals: Any,
    out_aval: Any,
    spec: str,
    epilogue: str = "",
    partitioned: bool = False,
    exported: bool = False,
) -> str:
    """Why shapes or shardings leave a product to XLA; "" where the kernel takes it.

    `partitioned`: on several devices, by Auto axes. `exported`: by jax.export.
    """
    if groups(spec, epilogue) is None:
        return "its dimensions make no strided GEMM without a copy"
    if any(0 in a.shape for a in (*avals, out_aval)):
        return "a dimension is 0"
    if out_aval.sharding.spec.unreduced:  # Shardy's own notion
        return "its sum is left open across devices (unreduced)"
    # XLA's partitioner aborts the process beside Manual axes, and its callback lives in this process alone.
    if partitioned and AxisType.Manual in _axis_kinds(out_aval):
        return "a shard_map leaves other axes of the mesh Auto. Name all axes, or make them Explicit"
    if partitioned and exported:
        return "exported for several devices by Auto axes. Use shard_map or Explicit axes"
    return ""


def _takes(ctx: Any, spec: str, epilogue: str = "") -> bool:
    (out_aval,) = ctx.avals_out
    partitioned, exported = _partitions_automatically(ctx), compat.exporting(ctx)
    return not why_xla(ctx.avals_in, out_aval, spec, epilogue, partitioned, exported)


def _runs(options: target.Options) -> bool:
    """Can the target run the kernel? RuntimeError says why not, unless fallback is on: then it warns once."""
    reason = target.refusal()
    if reason is None:
        return True
    if not options.fallback:
        raise RuntimeError(reason)
    target.warn_fallback(reason)
    return False


def _lower_gemm(ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    if not _takes(ctx, params["spec"]) or not _runs(params["options"]):
        return _lower_xla(ctx, lhs, rhs, **params)
    (out_aval,) = ctx.avals_out
    kinds, one_device = _axis_kinds(out_aval), _one_device(ctx)

    def kernel(lhs: Any, rhs: Any) -> Any:
        lhs, rhs = lhs.astype(params["compute_dtype"]), rhs.astype(params["compute_dtype"])
        if one_device:
            return local_p.bind(lhs, rhs, summed=(), **params)
        if AxisType.Explicit in kinds and AxisType.Auto not in kinds:
            return _explicit(lhs, rhs, out_aval, params)
        # HAZARD: JAX writes a mere address for the callback. In a persistent compilation cache, programs that
        # differ in nothing else would be taken for one another: so the options stand beside it.
        with compat.set_xla_metadata(hopgemm=_label(params)):
            d = _partitioned(lhs, rhs, tuple(sorted(params.items())))
        return jax.sharding.reshard(d, out_aval.sharding) if AxisType.Explicit in kinds else d

    return compat.lower_fun(kernel, multiple_results=False)(compat.with_known_mesh(ctx, out_aval), lhs, rhs)


def _lower_epilogue(ctx: Any, *args: Any, **params: Any) -> Any:
    fused = _one_device(ctx) and _takes(ctx, params["spec"], params["epilogue"]) and _runs(params["options"])
    if not fused:
        return _lower_decomposed(ctx, *args, **params)

    def kernel(lhs: Any, rhs: Any, *extras: Any) -> Any:
        lhs, rhs = lhs.astype(params["compute_dtype"]), rhs.astype(params["compute_dtype"])
        return local_p.bind(lhs, rhs, *extras, summed=(), **params)

    return compat.lower_fun(kernel, multiple_results=False)(ctx, *args)


def _lower_local(
    ctx: Any,
    *args: Any,
    spec: str,
    options: Any,
    summed: Any = (),
    out_sharding: Any = None,
    epilogue: str = "",
    alpha: float = 1.0,
    beta: float = 0.0,
    **params: Any,
) -> Any:
    if not summed:
        return _custom_call(ctx, args, spec, epilogue, options, alpha, beta)

    def partial_sums(
        lhs: Any, rhs: Any
    ) -> Any:  # rounded before they cross, as XLA's own are: half the bytes
        return lax.psum(local_p.bind(lhs, rhs, spec=spec, options=options, **params), summed)

    with compat.no_mesh():
        return compat.lower_fun(partial_sums, multiple_results=False)(ctx, *args)


def _custom_call(
    ctx: Any, args: Any, spec: str, epilogue: str, options: target.Options, alpha: float, beta: float
) -> Any:
    (out_aval,) = ctx.avals_out
    config, workspace_bytes = target.plan(spec, epilogue, ctx.avals_in, out_aval, options, alpha, beta)
    results = [out_aval]
    # XLA owns the workspace: the handler may not allocate.
    if not isinstance(workspace_bytes, int) or workspace_bytes > 0:
        results.append(ShapedArray((workspace_bytes,), np.dtype("uint8")))
    attributes = {
        "spec": spec,
        "epilogue": epilogue,
        "config": config,
        "alpha": np.float32(alpha),
        "beta": np.float32(beta),
        "sm_limit": np.int64(options.sm_limit),
        "batch_invariant": np.bool_(options.batch_invariant),
    }
    return compat.lower_custom_call(target.TARGET, ctx, args, attributes, results)[:1]


def use_kernel_on(platform: str) -> None:
    """Lower to the custom call on this platform. "cuda" is on; the tests add "cpu", with a host handler."""
    compat.register_lowering(gemm_p, _lower_gemm, platform=platform)
    compat.register_lowering(epilogue_p, _lower_epilogue, platform=platform)
    compat.register_lowering(local_p, _lower_local, platform=platform)


# Every other platform. XLA's CPU backend has no 16-bit product for some programs, and upcasting is exact.
compat.register_lowering(gemm_p, functools.partial(_lower_xla, upcast=True))
compat.register_lowering(epilogue_p, _lower_decomposed)
use_kernel_on("cuda")
