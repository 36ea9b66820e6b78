"""The product as a JAX primitive: `gemm_p`, bilinear, with labels instead of dimension numbers.

Its type (shape, dtype, Explicit sharding, varying axes) is the type rule of lax.dot_general itself. Every
transformation stays within `gemm_p`, so no rule emits a transpose or a copy. `epilogue_p` is the same product
with alpha, beta, c and bias; what it means is written once, as `elementwise` after `gemm_p`, and its
derivatives are products of `gemm_p`. Lowering is in _jax_lowering.py, the entries are in jax.py.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _jax_compat as compat
from ._jax_labels import dimension_numbers_of, extras_of, inverse, join, rename, split

gemm_p: Any = compat.Primitive("hopgemm")  # all transformations
epilogue_p: Any = compat.Primitive(
    "hopgemm_epilogue"
)  # operands: lhs, rhs, then c and bias as `epilogue` lists them
local_p: Any = compat.Primitive("hopgemm_local")  # one device's custom call: no transformation left to do

F32 = np.dtype("float32")


def as_dot_general(
    spec: str, out_dtype: Any, out_sharding: Any = None
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The parameters of the lax.dot_general that computes the same, and the permutation of its result."""
    numbers, perm = dimension_numbers_of(spec)
    params = {
        "dimension_numbers": numbers,
        "precision": None,
        "preferred_element_type": out_dtype,
        "out_sharding": compat.permuted(out_sharding, inverse(perm)),
    }
    return params, perm


# ---- type ------------------------------------------------------------------------------------------------


def _type(
    lhs: Any,
    rhs: Any,
    *extras: Any,
    spec: str,
    out_dtype: Any,
    compute_dtype: Any,
    out_sharding: Any = None,
    **params: Any,
) -> Any:
    own, perm = as_dot_general(spec, out_dtype, out_sharding)
    operands = (x.update(dtype=compute_dtype) for x in (lhs, rhs))
    out = compat.abstract_eval(compat.dot_general_p, *operands, **own)
    return compat.abstract_eval(compat.transpose_p, out, permutation=perm)


@functools.cache
def _jitted(prim: Any, params: Any) -> Any:
    return jax.jit(lambda *args: prim.bind(*args, **dict(params)))


def _impl(prim: Any, *args: Any, **params: Any) -> Any:
    with jax.disable_jit(False):  # under jax.disable_jit() the call below would come back here
        return _jitted(prim, tuple(sorted(params.items())))(*args)


for _p in (gemm_p, epilogue_p, local_p):
    _p.def_abstract_eval(_type)
    _p.def_impl(functools.partial(_impl, _p))


# ---- gemm_p: derivatives ---------------------------------------------------------------------------------


def _transpose(first: bool, g: Any, x: Any, y: Any, *, spec: str, options: Any, **params: Any) -> Any:
    """Cotangent of operand x: g times the other operand y, by labels. It leaves the fp32 sums in x's own
    dtype with one rounding, and g is rounded to compute_dtype where it enters: fp32 operands give fp32
    gradients of a bf16 product. The operands come in the order that gives x's layout as (kept of first, kept
    of second): no swap for the kernel."""
    lhs, rhs, out = split(spec)
    x_labels, y_labels = (lhs, rhs) if first else (rhs, lhs)
    params.update(out_dtype=x.aval.dtype, out_sharding=compat.cotangent_sharding(x))
    params.update(options=options._replace(config=""))  # a config names its majors, and these are others
    if first:
        return gemm_p.bind(g, y, spec=join(out, y_labels, x_labels), **params)
    return gemm_p.bind(y, g, spec=join(y_labels, out, x_labels), **params)


compat.defbilinear(
    gemm_p,
    functools.partial(_transpose, True),
    lambda g, x, y, **params: _transpose(False, g, y, x, **params),
)


# ---- vmap: a new letter ----------------------------------------------------------------------------------


def _insert(labels: str, dim: int | None) -> str:
    """The labels with the mapped dimension's letter: specs use small letters, so "A" is new."""
    return labels if dim is None else labels[:dim] + "A" + labels[dim:]


def _beside(lhs: str, out: str) -> int:
    """Where the new letter goes in the result if only lhs has it: next to its neighbour in lhs. There it
    folds into m, now and as k in the weight gradient."""
    kept = [c for c in lhs if c == "A" or c in out]
    i = kept.index("A")
    if i:
        return out.index(kept[i - 1]) + 1
    return out.index(kept[1]) if kept[1:] else 0


def _batch(axis_data: Any, args: Any, dims: Any, *, spec: str, out_sharding: Any, **params: Any) -> Any:
    if dims[0] is None and dims[1] is None:  # jax calls the rule for unmapped operands too
        return gemm_p.bind(*args, spec=spec, out_sharding=out_sharding, **params), None
    lhs, rhs, out = split(spec)
    lhs, rhs = _insert(lhs, dims[0]), _insert(rhs, dims[1])
    at = _beside(lhs, out) if dims[1] is None else 0
    if out_sharding is not None:
        parts = compat.partitions(out_sharding.spec, len(out))
        out_sharding = compat.respec(
            out_sharding, (*parts[:at], compat.mapped_mesh_axis(axis_data), *parts[at:])
        )
    spec = join(lhs, rhs, _insert(out, at))
    return gemm_p.bind(*args, spec=spec, out_sharding=out_sharding, **params), at


compat.register_batcher(gemm_p, _batch)


# ---- epilogue_p ------------------------------------------------------------------------------------------


def _spread(x: Any, labels: str, out: str, shape: Any) -> Any:
    """An epilogue operand in fp32, broadcast to the result by its labels."""
    order = sorted(range(len(labels)), key=lambda i: out.index(labels[i]))
    x = lax.transpose(x, order) if order != sorted(order) else x
    return lax.broadcast_in_dim(x.astype(F32), shape, [out.index(labels[i]) for i in order])


def elementwise(
    product: Any, extras: Any, *, out_labels: str, epilogue: str, out_dtype: Any, alpha: float, beta: float
) -> Any:
    """alpha * product + beta * c + bias in fp32, rounded once. `product` is fp32."""
    if alpha == 0:  # as in the kernel: a and b are not read, so their NaN does not spread
        product = jnp.zeros_like(product)
    d = product if alpha in (0, 1) else product * np.float32(alpha)
    for x, (name, labels) in zip(extras, extras_of(epilogue).items()):
        x = _spread(x, labels, out_labels, d.shape)
        d = d + (x * np.float32(beta) if name == "c" and beta != 1 else x)
    return d.astype(out_dtype)


def decomposed(
    lhs: Any,
    rhs: Any,
    *extras: Any,
    spec: str,
    epilogue: str,
    alpha: float,
    beta: float,
    out_dtype: Any,
    out_sharding: Any = None,
    **params: Any,
) -> Any:
    """What epilogue_p means: the product in fp32, then elementwise work."""
    product = gemm_p.bind(lhs, rhs, spec=spec, out_dtype=F32, out_sharding=out_sharding, **params)
    return elementwise(
        product,
        extras,
        out_labels=split(spec)[2],
        epilogue=epilogue,
        out_dtype=out_dtype,
        alpha=alpha,
        beta=beta,
    )


def _epilogue_jvp(
    primals: Any,
    tangents: Any,
    *,
    spec: str,
    epilogue: str,
    alpha: float,
    beta: float,
    out_dtype: Any,
    **params: Any,
) -> Any:
    out = epilogue_p.bind(
        *primals, spec=spec, epilogue=epilogue, alpha=alpha, beta=beta, out_dtype=out_dtype, **params
    )
    (lhs, rhs, *_), (d_lhs, d_rhs, *d_extras) = primals, tangents
    product = functools.partial(gemm_p.bind, spec=spec, out_dtype=F32, out_sharding=None, **params)
    terms = []
    if alpha != 0 and not isinstance(d_lhs, compat.Zero):
        terms.append((product(d_lhs, rhs), alpha))
    if alpha != 0 and not isinstance(d_rhs, compat.Zero):
        terms.append((product(lhs, d_rhs), alpha))
    for dx, (name, labels) in zip(d_extras, extras_of(epilogue).items()):
        if not isinstance(dx, compat.Zero):
            terms.append((_spread(dx, labels, split(spec)[2], out.shape), beta if name == "c" else 1))
    if not terms:
        return out, jnp.zeros_like(out)
    scaled = [t if factor == 1 else t * np.float32(factor) for t, factor in terms]
    return out, functools.reduce(jnp.add, scaled).astype(out_dtype)


def _epilogue_batch(axis_data: Any, args: Any, dims: Any, *, spec: str, epilogue: str, **params: Any) -> Any:
    if dims[0] is None and dims[1] is None:  # one product for the whole batch, then elementwise work
        f = functools.partial(decomposed, spec=spec, epilogue=epilogue, **params)
        return jax.vmap(f, in_axes=tuple(dims), axis_size=axis_data.size)(*args), 0
    lhs, rhs, out = split(spec)
    names = extras_of(epilogue)
    lhs, rhs = _insert(lhs, dims[0]), _insert(rhs, dims[1])
    extras = {name: _insert(labels, dim) for (name, labels), dim in zip(names.items(), dims[2:])}
    fold = dims[1] is None and "A" not in extras.get("bias", "")
    at = _beside(lhs, out) if fold else 0
    lhs, rhs, out, *labels = rename(lhs, rhs, _insert(out, at), *extras.values())
    epilogue = ",".join(f"{name}={s}" for name, s in zip(names, labels))
    return epilogue_p.bind(*args, spec=f"{lhs},{rhs}->{out}", epilogue=epilogue, **params), at


compat.register_jvp(epilogue_p, _epilogue_jvp)
compat.register_batcher(epilogue_p, _epilogue_batch)
