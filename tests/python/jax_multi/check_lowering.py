"""What stands in a program for CUDA, lowered without a GPU: our call, its attributes, and no copy."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from host_kernel import A3, B3, F32, TARGET, A, B, cuda_text, hj, loss, no_copies, rand, same
from jax import lax

PRODUCTS = {  # operands, and dot_general's dimension numbers or None for matmul
    "ab": ((A, B), None),
    "ab^T": ((A, B.T), (((1,), (1,)), ((), ()))),
    "a^Tb": ((A.T, B), (((0,), (0,)), ((), ()))),
    "a^Tb^T": ((A.T, B.T), (((0,), (1,)), ((), ()))),
    "batch": ((A3, B3), None),
    "fold": ((A3, B), None),
    "share_a": ((A, B3), None),
    "heads": ((rand(8, 3, 4), rand(3, 4, 6)), (((1, 2), (0, 1)), ((), ()))),
    "batch^T": ((A3, jnp.swapaxes(B3, 1, 2)), (((2,), (2,)), ((0,), (0,)))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_copies_forward_backward_and_second_order(name):
    args, numbers = PRODUCTS[name]
    ours, theirs = hj.matmul, jnp.matmul
    if numbers is not None:
        ours, theirs = (
            functools.partial(f, dimension_numbers=numbers) for f in (hj.dot_general, lax.dot_general)
        )
    same(ours, theirs, *args, calls=1)
    grad = jax.grad(loss(ours), (0, 1))
    for f, calls in ((ours, 1), (grad, 3), (lambda a, b: jax.jvp(grad, (a, b), (a, b)), 9)):
        text = cuda_text(f, *args)
        if (
            name == "share_a" and f is not ours
        ):  # a's gradient sums over two dimensions of b that lie apart: XLA's
            assert not re.search(r"stablehlo\.(copy|reshape)", text)
            continue
        no_copies(text)
        assert text.count("custom_call @" + TARGET) == calls


EPILOGUES = {
    "bias": dict(bias=jnp.ones(6, F32)),
    "c": dict(c=rand(8, 6), beta=1.0),
    "all": dict(bias=rand(6), c=rand(8, 6, dtype=F32), alpha=0.5, beta=2.0),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue_is_one_call_forward_and_no_copies_backward(name):
    arrays = {k: v for k, v in EPILOGUES[name].items() if k in ("c", "bias")}
    numbers = {k: v for k, v in EPILOGUES[name].items() if k not in arrays}
    f = lambda a, b, arrays: hj.matmul(a, b, **arrays, **numbers)
    text = cuda_text(f, A, B, arrays)
    no_copies(text)
    assert (
        text.count("custom_call @" + TARGET) == 1
        and "stablehlo.add" not in text
        and "stablehlo.mul" not in text
    )
    g = jax.grad(lambda *x: f(*x).astype(F32).sum(), (0, 1, 2))
    text = cuda_text(g, A, B, arrays)
    no_copies(text)
    assert text.count("custom_call @" + TARGET) == 2  # the forward value of a sum is not needed


def test_fp32_cotangents_enter_in_16_bits():
    f = functools.partial(hj.matmul, out_dtype=F32)
    text = cuda_text(lambda a, b, g: jax.vjp(f, a, b)[1](g), A, B, rand(8, 6, dtype=F32))
    calls = [line for line in text.splitlines() if "@" + TARGET in line]
    assert len(calls) == 2
    for line in calls:
        operands = re.findall(r": \((.*?)\) ->", line)[-1]
        assert operands.count("bf16") == 2 and "f32" not in operands


def test_layouts_are_row_major():
    text = cuda_text(hj.matmul, A3, B3)
    assert text.count("dense<[2, 1, 0]>") == 3


def test_attributes():
    text = cuda_text(
        functools.partial(hj.matmul, batch_invariant=True, sm_limit=64, alpha=0.5), rand(16, 8), rand(8, 24)
    )
    for piece in (
        'spec = "ab,bc->ac"',
        "sm_limit = 64 : i64",
        "batch_invariant = true",
        "alpha = 5.000000e-01 : f32",
        "beta = 0.000000e+00 : f32",
        'epilogue = ""',
        'config = "bf16_kn_',
    ):
        assert piece in text, piece


def test_named_config_is_passed_on_and_gradients_choose_their_own():
    a, b = rand(16, 8), rand(8, 24)
    config = re.search(r'config = "([^"]+)"', cuda_text(hj.matmul, a, b))[1]
    f = functools.partial(hj.matmul, config=config)
    assert f'config = "{config}"' in cuda_text(f, a, b)
    assert cuda_text(jax.grad(loss(f), (0, 1)), a, b).count(f'config = "{config}"') == 1


def test_config_is_asked_for_the_shape_and_majors():
    majors = {
        spec: re.search(
            r'config = "bf16_(..)_',
            cuda_text(functools.partial(hj.dot_general, dimension_numbers=n), x, y),
        )[1]
        for spec, n, x, y in (
            ("kk", (((1,), (1,)), ((), ())), rand(16, 8), rand(24, 8)),
            ("kn", (((1,), (0,)), ((), ())), rand(16, 8), rand(8, 24)),
            ("mk", (((0,), (1,)), ((), ())), rand(8, 16), rand(24, 8)),
            ("mn", (((0,), (0,)), ((), ())), rand(8, 16), rand(8, 24)),
        )
    }
    assert all(spec == found for spec, found in majors.items()), majors


def test_workspace_is_a_second_result():
    text = cuda_text(hj.matmul, rand(7, 5), rand(5, 3))
    assert re.search(r"-> \(tensor<7x3xbf16>, tensor<\d+xui8>\)", text), text
    assert "ui8" not in cuda_text(hj.matmul, rand(16, 8), rand(8, 24))


def test_scan_body_holds_the_call():
    text = cuda_text(
        lambda a, b: lax.scan(lambda c, _: (hj.matmul(c, b), None), a, None, 100)[0], rand(8, 8), rand(8, 8)
    )
    assert text.count("custom_call @" + TARGET) == 1
    no_copies(text)


def test_half_precision():
    text = cuda_text(hj.matmul, rand(16, 8, dtype=jnp.float16), rand(8, 24, dtype=jnp.float16))
    assert "@" + TARGET in text and 'config = "f16_kn_' in text
