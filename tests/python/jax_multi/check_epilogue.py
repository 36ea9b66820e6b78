"""alpha * a @ b + beta * c + bias as one call: values, derivatives of every order, vmap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_kernel import A3, B3, BF16, F32, LIB, A, B, hj, last_call, rand, same

BIAS, C = rand(6), rand(8, 6)


def reference(a, b, bias=None, c=None, alpha=1.0, beta=0.0, out_dtype=BF16):
    d = alpha * jnp.matmul(a.astype(F32), b.astype(F32))
    d = d + (beta * c.astype(F32) if c is not None else 0) + (bias.astype(F32) if bias is not None else 0)
    return d.astype(out_dtype)


CASES = {
    "bias": dict(bias=BIAS),
    "bias_fp32": dict(bias=BIAS.astype(F32)),
    "c": dict(c=C, beta=1.0),
    "c_fp32": dict(c=C.astype(F32), beta=-0.5),
    "alpha": dict(alpha=0.5),
    "all": dict(bias=BIAS, c=C, alpha=2.0, beta=4.0),
    "fp32_out": dict(bias=BIAS.astype(F32), c=C.astype(F32), alpha=2.0, beta=4.0, out_dtype=F32),
    "fp32_out_16_bit_extras": dict(bias=BIAS, c=C, alpha=2.0, beta=4.0, out_dtype=F32),
    "c_row": dict(c=rand(1, 6), beta=1.0),
    "c_column": dict(c=rand(8, 1), beta=1.0),
    "c_vector": dict(c=rand(6), beta=1.0, bias=BIAS),
    "c_scalar": dict(c=jnp.ones((), F32), beta=3.0),
}


def both(name):
    arrays = {k: v for k, v in CASES[name].items() if k in ("bias", "c")}
    numbers = {k: v for k, v in CASES[name].items() if k not in arrays}
    return arrays, *(lambda a, b, arrays, f=f: f(a, b, **arrays, **numbers) for f in (hj.matmul, reference))


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name):
    arrays, f, g = both(name)
    same(f, g, A, B, arrays, calls=1)
    same(jax.jit(f), jax.jit(g), A, B, arrays, calls=1)
    loss = lambda f: lambda *args: (f(*args).astype(F32) ** 2).sum()
    same(*(jax.jit(jax.grad(loss(h), (0, 1, 2))) for h in (f, g)), A, B, arrays, calls=3)
    tangents = (A, B, jax.tree.map(jnp.ones_like, arrays))
    same(*[jax.jit(lambda *x, h=h: jax.jvp(h, x, tangents)) for h in (f, g)], A, B, arrays)
    second = lambda f: jax.jit(lambda *x: jax.jvp(jax.grad(loss(f), (0, 1, 2)), x, tangents)[1])
    same(second(f), second(g), A, B, arrays)


@pytest.mark.parametrize("mapped", ["a", "b", "ab", "abc", "ac", "c", "bias", "a,bias", "abc,bias"])
def test_vmap(mapped):
    axes = (
        0 if "a" in mapped.replace("bias", "") else None,
        0 if "b" in mapped.replace("bias", "") else None,
        0 if "bias" in mapped else None,
        0 if "c" in mapped else None,
    )
    args = (
        A3 if axes[0] == 0 else A,
        B3 if axes[1] == 0 else B,
        rand(5, 6) if axes[2] == 0 else BIAS,
        rand(5, 8, 6) if axes[3] == 0 else C,
    )
    f, g = (
        lambda a, b, bias, c, f=f: f(a, b, bias=bias, c=c, alpha=2, beta=-1) for f in (hj.matmul, reference)
    )
    same(jax.vmap(f, axes), jax.vmap(g, axes), *args, calls=1)
    s = lambda f: jax.grad(lambda *x: (jax.vmap(f, axes)(*x).astype(F32)).sum(), (0, 1, 2, 3))
    for ours, theirs in zip(
        s(f)(*args), s(g)(*args)
    ):  # gradients summed over a batch: one rounding here, more there
        np.testing.assert_allclose(np.asarray(ours, "f4"), np.asarray(theirs, "f4"), rtol=1e-2, atol=1e-2)


def test_vmap_of_other_dimensions_and_nested():
    f, g = (lambda a, bias, c, f=f: f(a, B, bias=bias, c=c, beta=1) for f in (hj.matmul, reference))
    args = jnp.moveaxis(A3, 0, 1), rand(6, 5), rand(8, 6, 5)
    same(*[jax.vmap(h, (1, 1, 2), out_axes=1) for h in (f, g)], *args, calls=1)
    same(*[jax.vmap(jax.vmap(h, (0, None, None)), (None, 1, 2)) for h in (f, g)], A3, *args[1:])


def test_batched_products_take_bias_and_c():
    for a, b in ((A3, B), (A3, B3), (A, B3), (rand(2, 5, 8, 4), B3)):
        c = rand(*jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2]), 8, 6)
        f, g = (functools.partial(f, bias=BIAS, c=c, beta=2) for f in (hj.matmul, reference))
        same(f, g, a, b, calls=1)
    f, g = (functools.partial(f, bias=BIAS, c=rand(5, 1, 1), beta=2) for f in (hj.matmul, reference))
    same(f, g, A3, B3, calls=1)


def test_vectors():
    same(*[functools.partial(f, bias=BIAS) for f in (hj.matmul, reference)], rand(4), B, calls=1)
    same(*[functools.partial(f, c=rand(8), beta=1) for f in (hj.matmul, reference)], A, rand(4), calls=1)
    same(
        *[functools.partial(f, c=jnp.ones((), BF16), beta=1) for f in (hj.matmul, reference)],
        rand(4),
        rand(4),
        calls=1,
    )


def test_scan_and_checkpoint():
    step = lambda f: lambda c, _: (f(c, rand(8, 8), bias=rand(8), alpha=0.25), None)
    s = lambda f: lambda a: jax.lax.scan(jax.checkpoint(step(f)), a, None, 3)[0].astype(F32).sum()
    same(jax.grad(s(hj.matmul)), jax.grad(s(reference)), rand(8, 8))


def test_beta_zero_never_reads_c():
    nan = jnp.full((8, 6), jnp.nan, BF16)
    same(functools.partial(hj.matmul, c=nan), jnp.matmul, A, B, calls=1)
    assert last_call()["epilogue"] == ""


def test_alpha_zero_never_reads_the_operands():
    nan = jnp.full((8, 4), jnp.nan, BF16)
    f = lambda a, b: hj.matmul(a, b, bias=BIAS, alpha=0)
    same(f, lambda a, b: jnp.broadcast_to(BIAS, (8, 6)), nan, B, calls=1)
    grads = jax.grad(lambda a, b: f(a, b).astype(F32).sum(), (0, 1))(nan, B)
    assert all(not np.asarray(g, "f4").any() for g in grads)


def test_empty_operands_still_add():
    before = LIB.host_calls()
    got = hj.matmul(jnp.zeros((8, 0), BF16), jnp.zeros((0, 6), BF16), bias=BIAS, c=C, beta=1)
    np.testing.assert_array_equal(np.asarray(got, "f4"), np.asarray(C, "f4") + np.asarray(BIAS, "f4"))
    assert LIB.host_calls() == before


def test_rounded_once():
    rng = np.random.default_rng(0)
    a, b, c = (jnp.asarray(rng.standard_normal(s), BF16) for s in ((8, 64), (64, 16), (8, 16)))
    want = np.asarray(a, "f8") @ np.asarray(b, "f8") + np.asarray(c, "f8")
    want = np.asarray(jnp.asarray(want.astype("f4"), BF16), "f4")
    assert np.mean(np.asarray(hj.matmul(a, b, c=c, beta=1), "f4") != want) < 0.02
