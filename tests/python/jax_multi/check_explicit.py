"""Explicit mesh axes, beyond check_axis_types.py: gradients, epilogue, batches, unreduced, Auto beside."""

import functools

import jax
import jax.numpy as jnp
import pytest
from check_axis_types import SPECS
from host_kernel import BF16, F32, MM, W3, X3, W, X, collectives, compiled, hj, loss, mesh, put, rand, same
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mm = hj.matmul


@pytest.fixture
def m():
    m = mesh(AxisType.Explicit)
    with jax.set_mesh(m):
        yield m


def dot(f, **kwargs):
    return functools.partial(f, dimension_numbers=MM, **kwargs)


@pytest.mark.parametrize("lhs", SPECS, ids=str)
def test_gradients_have_the_same_types(m, lhs):
    same_values = 0
    for i, rhs in enumerate(SPECS):
        a, b = put(X, m, lhs), put(W, m, rhs)
        g = lambda f: jax.jit(jax.grad(loss(dot(f, out_sharding=P("x", None))), (0, 1)))
        try:
            want = g(lax.dot_general).trace(a, b)
        except Exception:  # refused: check_axis_types.py compares refusals
            continue
        got = g(hj.dot_general).trace(a, b)
        assert str(got.out_info) == str(want.out_info), rhs
        if i % 3 == SPECS.index(lhs) % 3 and not same_values:
            same(g(hj.dot_general), g(lax.dot_general), a, b)
            same_values += 1
    assert same_values


def test_epilogue(m):
    a, b, bias, c = (
        put(X, m, P("x", None)),
        put(W, m, P(None, "y")),
        rand(12),
        put(rand(16, 12), m, P("x", "y")),
    )
    f = lambda a, b, bias, c: mm(a, b, bias=bias, c=c, alpha=2, beta=-1)
    g = lambda a, b, bias, c: (2 * jnp.matmul(a, b, preferred_element_type=F32) - c + bias).astype(BF16)
    same(jax.jit(f), jax.jit(g), a, b, bias, c)
    s = lambda f: jax.jit(jax.grad(lambda *x: f(*x).astype(F32).sum(), (0, 1, 2, 3)))
    same(s(f), s(g), a, b, bias, c)
    same(
        jax.jit(jax.vmap(f, (0, None, None, None))),
        jax.jit(jax.vmap(g, (0, None, None, None))),
        jnp.stack([a, a]),
        b,
        bias,
        c,
    )


def test_batched_and_transposed_products(m):
    a, b = put(X3, m, P("x", "y", None)), put(W3, m, P("x", None, None))
    reshard = jax.sharding.reshard
    for f in (
        lambda mm: mm,
        lambda mm: jax.grad(loss(mm), (0, 1)),
        lambda mm: jax.vmap(mm),
        lambda mm: jax.vmap(jax.grad(loss(mm), (0, 1))),
        lambda mm: lambda a, b: jax.vmap(mm, (0, None))(a, reshard(W, P(None, None))),
        lambda mm: lambda a, b: mm(reshard(X, P("y", None)), b),
    ):
        same(jax.jit(f(mm)), jax.jit(f(jnp.matmul)), a, b)
    f = lambda f: lambda a, b: f(a, b, (((0,), (1,)), ((), ())))
    a, b = put(X.T, m, P(None, "x")), put(W.T, m, P("y", None))
    same(jax.jit(f(hj.dot_general)), jax.jit(f(lax.dot_general)), a, b)
    g = lambda f_: jax.jit(jax.grad(loss(f(f_)), (0, 1)))
    same(g(hj.dot_general), g(lax.dot_general), a, b)


def test_unreduced_goes_to_xla(m):
    a, b = put(X, m, P(None, "x")), put(W, m, P("x", None))
    f = lambda f: jax.jit(
        lambda a, b: jax.sharding.reshard(
            dot(f, out_sharding=P(None, None, unreduced={"x"}))(a, b), P(None, None)
        )
    )
    same(f(hj.dot_general), f(lax.dot_general), a, b, calls=0)
    w, x = put(W, m, P(None, None, reduced={"x"})), put(X, m, P("x", None))
    types = lambda mm: [str(v.aval) for v in jax.make_jaxpr(jax.grad(loss(mm), (0, 1)))(x, w).jaxpr.outvars]
    assert types(mm) == types(jnp.matmul)


def test_operands_captured(m):
    a, b = put(X, m, P("x", None)), put(W, m, P(None, "y"))
    same(jax.jit(lambda c: mm(a, b) + c), jax.jit(lambda c: jnp.matmul(a, b) + c), BF16(1))


def test_explicit_and_auto_axes_together():
    m = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with jax.set_mesh(m):
        a, b = put(X, m, P("x", None)), put(W, m, P(None, None))
        for f in (lambda mm: mm, lambda mm: jax.grad(loss(mm), (0, 1))):
            same(jax.jit(f(mm)), jax.jit(f(jnp.matmul)), a, b)
        assert "all-gather" not in collectives(compiled(mm, a, b))[0]
