"""replace_linear: every equinox.nn.Linear of a model by ours, with the same leaves and the same results."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_kernel import BF16, F32, LIB, hj, rand

KEY = jax.random.key(0)


def integers(model):
    round_ = lambda w: jnp.round(w * 4).clip(-1, 1).astype(BF16)
    return jax.tree.map(lambda w: round_(w) if eqx.is_inexact_array(w) else w, model)


def same_arrays(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x, "f4"), np.asarray(y, "f4"))


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias):
    linear = integers(eqx.nn.Linear(8, 24, use_bias=bias, key=KEY))
    ours = hj.replace_linear(linear)
    assert isinstance(ours, eqx.nn.Linear) and type(ours) is not eqx.nn.Linear
    same_arrays(jax.tree.leaves(ours), jax.tree.leaves(linear))
    for x, f in (
        (rand(8), lambda m: m),
        (rand(16, 8), jax.vmap),
        (rand(2, 4, 8), lambda m: jax.vmap(jax.vmap(m))),
    ):
        before = LIB.host_calls()
        call = eqx.filter_jit(lambda m, x, f=f: f(m)(x))
        same_arrays(jax.block_until_ready(call(ours, x)), call(linear, x))
        assert LIB.host_calls() - before == 1
        (product,) = hj.plan(f(ours), x)
        lhs, rhs = product.spec.partition("->")[0].split(",")
        assert lhs[-1] == rhs[-1]  # K lies innermost in both: no transpose


def test_a_model_is_replaced_whole_and_trains():
    model = integers(eqx.nn.MLP(8, 8, 16, depth=2, key=KEY))
    ours = hj.replace_linear(model)
    loss = lambda m, x: jax.vmap(m)(x).astype(F32).sum()
    x = rand(16, 8)
    assert [p.by for p in hj.plan(lambda x: jax.vmap(ours)(x), x)] == ["kernel"] * 3
    got, want = (eqx.filter_jit(eqx.filter_grad(loss))(m, x) for m in (ours, model))
    same_arrays(jax.tree.leaves(got), jax.tree.leaves(want))
    again = hj.replace_linear(ours)  # replacing twice changes nothing
    same_arrays(jax.vmap(again)(x), jax.vmap(model)(x))


def test_fp32_weights_and_compute_dtype():
    linear = eqx.nn.Linear(8, 24, key=KEY)
    x = rand(16, 8, dtype=F32)
    assert [p.by for p in hj.plan(jax.vmap(hj.replace_linear(linear)), x)] == ["xla"]
    ours = hj.replace_linear(linear, compute_dtype=BF16)
    assert [p.by for p in hj.plan(jax.vmap(ours), x)] == ["kernel"]
    got = jax.vmap(ours)(x)
    want = np.asarray(x) @ np.asarray(linear.weight.astype(BF16), "f4").T + np.asarray(linear.bias)
    assert got.dtype == F32
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_scalars_subclasses_and_models_without_a_linear():
    class Own(eqx.nn.Linear):
        pass

    scalar = integers(eqx.nn.Linear("scalar", "scalar", key=KEY))
    same_arrays(hj.replace_linear(scalar)(jnp.ones((), BF16)), scalar(jnp.ones((), BF16)))
    with pytest.raises(ValueError, match="x has shape .1,."):
        hj.replace_linear(scalar)(jnp.ones(1, BF16))
    both = hj.replace_linear([Own(8, 8, key=KEY), scalar])
    assert [type(x) is Own for x in both] == [True, False]  # its call may be its own
    with pytest.raises(ValueError, match="Own holds no equinox.nn.Linear"):
        hj.replace_linear(Own(8, 8, key=KEY))
    with pytest.raises(ValueError, match="LayerNorm holds no equinox.nn.Linear.*dot_general"):
        hj.replace_linear(eqx.nn.LayerNorm(8))
