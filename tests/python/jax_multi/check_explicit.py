"""Explicit mesh axes: the same types, refusals and values as lax, and no gathered operand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check_auto import SHARDED
from host_kernel import BF16, F32, MM, TARGET, W3, X3, W, X, collectives, hj, loss, mesh, put, rand, same
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mm = hj.matmul
SPECS = [
    P(None, None),
    P("x", None),
    P(None, "x"),
    P("x", "y"),
    P(("x", "y"), None),
    P("y", "x"),
    P(None, "y"),
]


@pytest.fixture
def m():
    m = mesh(AxisType.Explicit)
    with jax.set_mesh(m):
        yield m


def dot(f, **kwargs):
    return functools.partial(f, dimension_numbers=MM, **kwargs)


def outcome(f, *args):
    """The value and type that f gives, or the name of the error."""
    try:
        y = jax.jit(f)(*args)
    except Exception as e:
        return type(e).__name__, str(e)[:50] if isinstance(e, ValueError) else "", np.zeros(())
    return str(jax.typeof(y)), str(y.sharding.spec), np.asarray(y, "f4")


@pytest.mark.parametrize("lhs", SPECS, ids=str)
def test_same_accepts_refusals_and_types(m, lhs):
    for rhs in SPECS:
        for out in (None, P("x", "y")):
            a, b = put(X, m, lhs), put(W, m, rhs)
            got, want = (outcome(dot(f, out_sharding=out), a, b) for f in (hj.dot_general, lax.dot_general))
            assert got[:2] == want[:2], (rhs, out)
            np.testing.assert_array_equal(got[2], want[2])


def test_the_cases_hold_refusals(m):
    f = dot(hj.dot_general, out_sharding=None)
    assert outcome(f, put(X, m, P("x", None)), put(W, m, P(None, "x")))[0] == "ShardingTypeError"
    assert (
        outcome(f, put(X, m, P(None, "x")), put(W, m, P("x", None)))[0] == "ShardingTypeError"
    )  # K split, no out_sharding


@pytest.mark.parametrize("lhs", SPECS, ids=str)
def test_gradients_have_the_same_types(m, lhs):
    cases = 0
    for rhs in SPECS[SPECS.index(lhs) % 3 :: 3]:
        a, b = put(X, m, lhs), put(W, m, rhs)
        g = lambda f: jax.jit(jax.grad(loss(dot(f, out_sharding=P("x", None))), (0, 1)))
        try:
            g(lax.dot_general).trace(a, b)
        except Exception:
            continue
        same(g(hj.dot_general), g(lax.dot_general), a, b)
        cases += 1
    assert cases


def test_data_parallel_layer():
    m = mesh(AxisType.Explicit, (4,), ("data",))
    with jax.set_mesh(m):
        x, w = put(X, m, P("data", None)), put(W, m, P(None, None))
        two_layers = lambda mm: lambda x, w: mm(jax.nn.relu(mm(x, w)), w.T).sum()
        for f in (
            lambda mm: jax.grad(loss(mm), (0, 1)),
            lambda mm: jax.grad(two_layers(mm), 1),
            lambda mm: lambda x, w: jax.jvp(mm, (x, w), (x, w)),
            lambda mm: jax.value_and_grad(jax.checkpoint(loss(mm)), 1),
        ):
            same(jax.jit(f(mm)), jax.jit(f(jnp.matmul)), x, w)
            same(f(mm), f(jnp.matmul), x, w)
            assert "all-gather" not in collectives(f(mm), x, w)[0]
        h = lambda mm: jax.jit(jax.hessian(lambda w: (mm(x, w) ** 2).sum()))
        same(h(mm), h(jnp.matmul), w)


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


@pytest.mark.parametrize("name", SHARDED)
def test_no_gather(m, name):
    lhs, rhs, three, want = SHARDED[name]
    a, b = put(X3 if three else X, m, lhs), put(W3 if three else W, m, rhs)
    numbers = (((2,), (1,)), ((0,), (0,))) if three else MM
    f = lambda f: functools.partial(
        f, dimension_numbers=numbers, out_sharding=P(lhs[0], None) if want else None
    )
    same(jax.jit(f(hj.dot_general)), jax.jit(f(lax.dot_general)), a, b)
    got, text = collectives(f(hj.dot_general), a, b)
    assert got == ({want} if want else set()) and f'custom_call_target="{TARGET}"' in text


def test_k_split_and_row_result(m):
    a, b = put(X, m, P(None, "x")), put(W, m, P("x", None))
    y = jax.jit(dot(hj.dot_general, out_sharding=P("x", None)))(a, b)
    assert jax.typeof(y).sharding.spec == P("x", None)
    np.testing.assert_array_equal(np.asarray(y, "f4"), np.asarray(X, "f4") @ np.asarray(W, "f4"))


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
        assert "all-gather" not in collectives(mm, a, b)[0]
