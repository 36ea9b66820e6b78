"""Auto mesh axes, beyond check_axis_types.py: meshes no context names, epilogue, rounding, scan, vmap."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_kernel import BF16, F32, TARGET, X3, W, X, collectives, compiled, hj, loss, mesh, put, rand, same
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mm = hj.matmul

SHARDED = {  # lhs, rhs, the forward's collective
    "row": (P("x", None), P(None, None), None),
    "both": (P("x", None), P(None, "y"), None),
    "k": (P(None, "x"), P("x", None), "all-reduce"),
}


@pytest.fixture(params=["arguments", "set_mesh"])
def auto(request):
    """An Auto mesh that shows in the arguments' shardings alone, or in the context as well."""
    m = mesh(AxisType.Auto)
    with jax.set_mesh(m) if request.param == "set_mesh" else contextlib.nullcontext():
        yield m


@pytest.mark.parametrize("name", SHARDED)
def test_a_mesh_that_shows_in_the_arguments_alone(name):
    m = mesh(AxisType.Auto)
    lhs, rhs, want = SHARDED[name]
    a, b = put(X, m, lhs), put(W, m, rhs)
    same(jax.jit(mm), jax.jit(jnp.matmul), a, b)
    got, text = collectives(compiled(mm, a, b))
    assert got == ({want} if want else set()) and f'custom_call_target="{TARGET}"' in text
    g = jax.grad(loss(mm), (0, 1))
    same(jax.jit(g), jax.jit(jax.grad(loss(jnp.matmul), (0, 1))), a, b)
    assert "all-gather" not in collectives(compiled(g, a, b))[0]


@pytest.mark.parametrize("name", ["row", "k"])
def test_epilogue(name, auto):
    lhs, rhs, want = SHARDED[name]
    a, b, bias, c = put(X, auto, lhs), put(W, auto, rhs), rand(12), rand(16, 12)
    f = lambda a, b, bias, c: mm(a, b, bias=bias, c=c, alpha=2, beta=-1)
    g = lambda a, b, bias, c: (2 * jnp.matmul(a, b, preferred_element_type=F32) - c + bias).astype(BF16)
    same(jax.jit(f), jax.jit(g), a, b, bias, c)
    got, text = collectives(compiled(f, a, b, bias, c))
    assert got == ({want} if want else set()) and f'custom_call_target="{TARGET}"' in text
    s = lambda f: jax.jit(jax.grad(lambda *x: f(*x).astype(F32).sum(), (0, 1, 2, 3)))
    same(s(f), s(g), a, b, bias, c)


def test_partial_sums_cross_in_the_type_of_the_result():
    """As XLA's own do: 16 bits are half the bytes; out_dtype=float32 keeps them unrounded."""
    m = mesh(AxisType.Auto)
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal(s), BF16) for s in ((16, 64), (64, 16)))
    halves = [np.asarray(a[:, k], "f8") @ np.asarray(b[k], "f8") for k in (slice(32), slice(32, 64))]
    rounded = sum(np.asarray(jnp.asarray(x, F32).astype(BF16), "f4") for x in halves)
    put_a, put_b = put(a, m, P(None, "x")), put(b, m, P("x", None))
    got = jax.jit(mm)(put_a, put_b)
    assert got.dtype == BF16
    want = np.asarray(jnp.asarray(rounded).astype(BF16), "f4")
    assert np.mean(np.asarray(got, "f4") != want) < 0.02  # ties only
    whole = np.asarray(jax.jit(lambda a, b: mm(a, b, out_dtype=F32))(put_a, put_b))
    np.testing.assert_allclose(whole, halves[0] + halves[1], rtol=1e-5, atol=1e-5)


def test_operands_captured_and_arguments_unused(auto):
    a, b = put(X, auto, P("x", None)), put(W, auto, P(None, "y"))
    same(jax.jit(lambda c: mm(a, b) + c), jax.jit(lambda c: jnp.matmul(a, b) + c), BF16(1))
    h = lambda mm: jax.jit(jax.hessian(lambda w: (mm(a, w) ** 2).sum()))
    same(h(mm), h(jnp.matmul), b)


def test_scan_and_vmap():
    m = mesh(AxisType.Auto)
    x, w = put(rand(16, 8), m, P("x", None)), put(rand(3, 8, 8), m, P(None, None, "y"))
    f = lambda mm: jax.jit(
        jax.grad(
            lambda x, w: lax.scan(lambda c, w: (mm(c, w) * 0.125, None), x, w)[0].astype(F32).sum(), (0, 1)
        )
    )
    before = f(jnp.matmul)(x, w)
    for ours, theirs in zip(f(mm)(x, w), before):  # K is split: jnp rounds each part, we round once
        np.testing.assert_allclose(np.asarray(ours, "f4"), np.asarray(theirs, "f4"), rtol=2e-2, atol=2e-2)
    v = lambda mm: jax.jit(jax.vmap(mm, (None, 0)))
    same(v(mm), v(jnp.matmul), x, w)
    assert "all-gather" not in collectives(compiled(v(mm), x, w))[0]
    v = lambda mm: jax.jit(jax.vmap(mm, (0, None), spmd_axis_name="x"))
    same(v(mm), v(jnp.matmul), put(X3, m, P("x", None, None)), W)
