"""Flax's layers with our dot_general: nnx.Linear and LinearGeneral, linen.Dense and DenseGeneral."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from host_kernel import BF16, F32, LIB, cuda_text, hj, rand
from jax import lax

X = rand(4, 16, 8)


def nnx_layer(cls, *sizes, **kwargs):
    """Makes of a dot_general a function of the layer's state and its input, and the state."""

    def of(dot_general, dtype):
        layer = cls(*sizes, dtype=dtype, dot_general=dot_general, rngs=nnx.Rngs(0), **kwargs)
        graph, state = nnx.split(layer)
        return lambda state, x: nnx.merge(graph, state)(x), state

    return of


def linen_layer(cls, *sizes, **kwargs):
    def of(dot_general, dtype):
        layer = cls(*sizes, dtype=dtype, dot_general=dot_general, **kwargs)
        return layer.apply, layer.init(jax.random.key(0), X)

    return of


LAYERS = {
    "nnx.Linear": nnx_layer(nnx.Linear, 8, 24),
    "nnx.LinearGeneral": nnx_layer(nnx.LinearGeneral, (16, 8), (3, 8), axis=(-2, -1)),
    "linen.Dense": linen_layer(linen.Dense, 24),
    "linen.DenseGeneral": linen_layer(linen.DenseGeneral, (3, 8), axis=(-2, -1)),
}


def integers(state):
    """Small whole weights: sums are exact, so that results compare bit for bit."""
    return jax.tree.map(lambda w: jnp.round(w * 3).clip(-1, 1).astype(w.dtype), state)


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    (f, state), (g, _) = (LAYERS[name](dot, BF16) for dot in (hj.dot_general, lax.dot_general))
    state = integers(state)
    assert {w.dtype for w in jax.tree.leaves(state)} == {jnp.dtype(F32)}  # master weights
    loss = lambda f: lambda state, x: (f(state, x).astype(F32)).sum()
    for ours, theirs, calls in ((f, g, 1), *[(*(jax.grad(loss(h), (0, 1)) for h in (f, g)), 2)]):
        before = LIB.host_calls()
        got, want = jax.block_until_ready(jax.jit(ours)(state, X)), theirs(state, X)
        assert LIB.host_calls() - before == calls
        jax.tree.map(
            lambda x, y: np.testing.assert_array_equal(np.asarray(x, "f4"), np.asarray(y, "f4")), got, want
        )
        assert jax.tree.map(lambda x: x.dtype, got) == jax.tree.map(lambda x: x.dtype, want)
    text = cuda_text(f, state, X)
    assert text.count("@hopgemm.matmul.v1") == 1 and "stablehlo.dot_general" not in text


def test_fp32_layers_stay_xlas_and_compute_dtype_takes_them():
    f, state = LAYERS["nnx.Linear"](hj.dot_general, F32)
    assert [p.by for p in hj.plan(f, state, X)] == ["xla"]
    f, state = LAYERS["nnx.Linear"](hj.dot_general_with(compute_dtype=BF16), F32)
    assert [p.by for p in hj.plan(f, state, X.astype(F32))] == ["kernel"]
    grads = jax.grad(lambda state: f(state, X.astype(F32)).sum())(state)
    assert {w.dtype for w in jax.tree.leaves(grads)} == {jnp.dtype(F32)}
