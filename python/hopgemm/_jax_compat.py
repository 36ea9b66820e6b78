"""The only file that touches JAX's extension surface: everything here may move between JAX releases.

Tried on jax 0.9.1, 0.9.2, 0.10.2, 0.11.2 and 0.12.0.1. One import from `jax._src`, marked PRIVATE.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning as custom_partitioning
from jax.experimental.xla_metadata import set_xla_metadata as set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.extend.core import Primitive as Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

VERSION = tuple(int(x) for x in jax.__version__.split(".")[:2])

dot_general_p: Any = lax.dot_general_p
transpose_p: Any = lax.transpose_p
defbilinear, Zero = ad.defbilinear, ad.Zero
register_lowering, lower_fun = mlir.register_lowering, mlir.lower_fun


def register_jvp(prim: Any, rule: Any) -> None:
    """rule(primals, tangents, **params) -> (primal, tangent); an absent tangent is a `Zero`."""
    ad.primitive_jvps[prim] = rule


def register_batcher(prim: Any, rule: Any) -> None:
    """rule(axis_data, args, dims, **params): the "fancy" form, told the mapped dimension's mesh axis."""
    batching.fancy_primitive_batchers[prim] = rule


def needs_devices(prim: Any) -> None:
    """Tell jit to keep the device assignment while `prim` is lowered. custom_partitioning needs it, and jit
    looks for custom_partitioning in the traced program only, where it is not: it appears when `prim` is
    lowered.
    PRIVATE: no public way. Without it lowering stops with an AssertionError ("Please file a bug")."""
    from jax._src.dispatch import prim_requires_devices_during_lowering

    prim_requires_devices_during_lowering.add(prim)


def abstract_eval(prim: Any, *avals: Any, **params: Any) -> Any:
    """The type that JAX itself gives to `prim` (shape, dtype, sharding, varying axes), or its refusal."""
    return prim.abstract_eval(*avals, **params)[0]


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """The programs inside an equation: the bodies of jit, scan, cond, checkpoint, shard_map and their kin."""
    for value in eqn.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def lower_custom_call(target: str, ctx: Any, operands: Any, attributes: Any, results: Any) -> Any:
    """Emit an FFI call with row-major operands and these results (avals); returns its values."""
    return jax.ffi.ffi_lowering(target)(ctx.replace(avals_out=results), *operands, **attributes)


def partitions(spec: str, ndim: int) -> tuple[Any, ...]:
    """One entry per dimension. (0.9 iterates over the spec, later releases have .partitions.)"""
    parts = tuple(getattr(spec, "partitions", spec))
    return parts + (None,) * (ndim - len(parts))


def respec(sharding: Any, parts: Any) -> Any:
    """The same sharding with other partitions; unreduced and reduced axes stay."""
    return sharding.update(spec=sharding.spec.update(partitions=tuple(parts)))


def permuted(sharding: Any, order: Any) -> Any:
    """The sharding of a transposed array."""
    if sharding is None:
        return None
    parts = partitions(sharding.spec, len(order))
    return respec(sharding, [parts[i] for i in order])


def cotangent_sharding(x: Any) -> Any:
    """The sharding of the cotangent of the undefined primal `x`, by the rule of dot_general's transpose."""
    if VERSION < (0, 10):  # 0.9 hands over the primal's type, later releases the cotangent's
        of_cotangent = getattr(x.aval, "to_ct_aval", None) or x.aval.to_cotangent_aval  # 0.9.2, 0.9.1
        return of_cotangent().sharding
    sharding = x.aval.sharding
    if sharding.mesh.empty:
        sharding = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec(*[None] * x.aval.ndim))
    return sharding


def mapped_mesh_axis(axis_data: Any) -> Any:
    """The Explicit mesh axis (or None) that the dimension mapped by vmap is sharded over."""
    return axis_data.explicit_mesh_axis


def varying_alike(*arrays: Any) -> list[Any]:
    """The arrays cast to vary over the same mesh axes, as JAX's elementwise operations do in shard_map."""
    axes = [frozenset(getattr(jax.typeof(x), "vma", ())) for x in arrays]
    union = frozenset().union(*axes)
    return [
        lax.pcast(x, tuple(union - have), to="varying") if union - have else x
        for x, have in zip(arrays, axes)
    ]


def no_mesh() -> Any:
    """Context without a mesh. jit compiles, and so calls a partitioning callback, inside the caller's
    jax.set_mesh: on an Explicit mesh 0.12 then writes sharding marks into the scalar reduction of a psum, and
    XLA refuses it."""
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def with_known_mesh(ctx: Any, aval: Any) -> Any:
    """The lowering context with the mesh of `aval` filled in, so that custom_partitioning hands
    NamedShardings to its callback. jit takes the mesh from the shardings of used arguments and of results,
    and finds none when, say, all are captured. (`with mesh:` would do it too, but warns from 0.10 on.)"""
    axes, mesh = ctx.module_context.axis_context, aval.sharding.mesh
    if getattr(axes, "abstract_mesh", mesh) is not None or mesh.empty or mesh.size != axes.num_devices:
        return ctx
    axes = dataclasses.replace(axes, abstract_mesh=mesh)
    return ctx.replace(module_context=ctx.module_context.replace(axis_context=axes))


def num_devices(ctx: Any) -> int:
    """Devices of the program that is being lowered."""
    axes = ctx.module_context.axis_context
    return axes.mesh.size if hasattr(axes, "mesh") else getattr(axes, "num_devices", None) or 1


def exporting(ctx: Any) -> bool:
    """Is this lowering for jax.export?"""
    return getattr(ctx.module_context.lowering_parameters, "for_export", False)
