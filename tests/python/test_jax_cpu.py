"""hopgemm.jax without a GPU: XLA's product in fp32, arguments and refusals, the choice for a target."""

import functools
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import hopgemm  # noqa: E402
import hopgemm.jax as hj  # noqa: E402
from hopgemm import _core, _jax_target  # noqa: E402

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
CALL = "@hopgemm.matmul.v1"


def rand(*shape, dtype=BF16):
    return jnp.asarray(np.random.default_rng(sum(shape)).integers(-3, 4, shape), dtype)


def cuda_text(f, *args):
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


A, B = rand(8, 4), rand(4, 6)


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the CPU's product is tested where jax runs on the CPU"
)
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    "shapes",
    [
        ((8, 4), (4, 6)),
        ((4,), (4, 6)),
        ((8, 4), (4,)),
        ((4,), (4,)),
        ((5, 8, 4), (4, 6)),
        ((5, 1, 8, 4), (3, 4, 6)),
        ((0, 4), (4, 6)),
        ((8, 0), (0, 6)),
    ],
    ids=str,
)
def test_exact_product(shapes, dtype):
    a, b = (rand(*s, dtype=dtype) for s in shapes)
    want = np.matmul(np.asarray(a, "f8"), np.asarray(b, "f8"))
    for out_dtype in (None, dtype, F32):
        got = hopgemm.matmul(a, b, out_dtype=out_dtype)
        assert got.dtype == (out_dtype or dtype) and got.shape == want.shape
        np.testing.assert_array_equal(np.asarray(got, "f8"), want)
    assert "custom_call" not in jax.jit(hj.matmul).lower(a, b).as_text()


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the CPU's product is tested where jax runs on the CPU"
)
def test_rounded_once():
    rng = np.random.default_rng(0)
    a, b, c = (jnp.asarray(rng.standard_normal(s), BF16) for s in ((32, 64), (64, 32), (32, 32)))
    exact = np.asarray(a, "f8") @ np.asarray(b, "f8") * 0.5 + 2 * np.asarray(c, "f8")
    got = np.asarray(hj.matmul(a, b, c=c, alpha=0.5, beta=2), "f4")
    want = np.asarray(jnp.asarray(exact.astype("f4"), BF16), "f4")
    assert np.mean(got != want) < 0.01  # ties of the fp32 sum only


# ---- refusals: the argument, the value found, the rule, the way out --------------------------------------

REFUSALS = {
    "float32": (
        lambda: hj.matmul(A.astype(F32), B.astype(F32)),
        TypeError,
        r"a is float32\(8, 4\) and b is float32\(4, 6\).*astype",
    ),
    "mixed": (
        lambda: hj.matmul(A, B.astype(F16)),
        TypeError,
        r"a is bfloat16\(8, 4\) and b is float16\(4, 6\).*nothing is promoted",
    ),
    "numpy": (lambda: hj.matmul(np.ones((8, 4)), B), TypeError, "a is ndarray.*jnp.asarray"),
    "list": (lambda: hj.matmul(A, [1]), TypeError, "b is list.*jnp.asarray"),
    "scalar": (lambda: hj.matmul(A, jnp.ones((), BF16)), ValueError, "at least 1 dimension"),
    "inner": (
        lambda: hj.matmul(A, A),
        ValueError,
        r"a's last dimension \(4\) must equal b's second to last dimension \(8\)",
    ),
    "inner_vector": (lambda: hj.matmul(A, rand(5)), ValueError, r"\(4\) must equal b's .*dimension \(5\)"),
    "batch": (lambda: hj.matmul(rand(2, 8, 4), rand(3, 4, 6)), ValueError, "found 2 and 3"),
    "out": (lambda: hj.matmul(A, B, out=A), TypeError, "out is given; JAX arrays are immutable"),
    "out_dtype": (
        lambda: hj.matmul(A, B, out_dtype=F16),
        TypeError,
        "out_dtype is float16; must be bfloat16",
    ),
    "bias_shape": (lambda: hj.matmul(A, B, bias=rand(8)), ValueError, r"bias has shape \(8,\)"),
    "bias_vector": (
        lambda: hj.matmul(A, rand(4), bias=rand(1)),
        ValueError,
        "one value for each column of b",
    ),
    "bias_dtype": (lambda: hj.matmul(A, B, bias=rand(6, dtype=F16)), TypeError, "bias is float16; must be"),
    "bias_list": (lambda: hj.matmul(A, B, bias=[0] * 6), TypeError, "bias is a list"),
    "c_shape": (lambda: hj.matmul(A, B, c=rand(6, 8), beta=1), ValueError, r"c has shape \(6, 8\).*\(8, 6\)"),
    "c_rank": (lambda: hj.matmul(A, B, c=rand(1, 8, 6), beta=1), ValueError, r"c has shape \(1, 8, 6\)"),
    "c_shape_unread": (lambda: hj.matmul(A, B, c=rand(6, 8)), ValueError, r"c has shape"),
    "beta": (lambda: hj.matmul(A, B, beta=1), ValueError, "beta needs c"),
    "alpha_text": (lambda: hj.matmul(A, B, alpha="x"), TypeError, "alpha is 'x'"),
    "alpha_traced": (lambda: jax.jit(lambda s: hj.matmul(A, B, alpha=s))(2.0), TypeError, "alpha is traced"),
    "sm_limit": (lambda: hj.matmul(A, B, sm_limit=-1), ValueError, "sm_limit is -1"),
    "sm_limit_type": (lambda: hj.matmul(A, B, sm_limit=1.5), TypeError, "sm_limit is 1.5"),
    "config_type": (lambda: hj.matmul(A, B, config=3), TypeError, "config is 3 .int."),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, kind, message = REFUSALS[name]
    with pytest.raises(kind, match=message):
        call()


def test_refusals_also_come_while_tracing():
    with pytest.raises(TypeError, match="nothing is promoted"):
        jax.jit(hj.matmul).trace(A, B.astype(F16))
    with pytest.raises(ValueError, match="must equal"):
        jax.eval_shape(hj.matmul, A, A)


@pytest.mark.parametrize("shapes", [((0, 4), (4, 6)), ((8, 0), (0, 6)), ((8, 4), (4, 0)), ((8, 4), (4, 6))])
def test_shapes_alone_are_enough(shapes):
    """Without values and without a GPU: the type of the result and the program, of the gradients too."""
    a, b = (jax.ShapeDtypeStruct(s, BF16) for s in shapes)
    for out_dtype in (BF16, F32):
        f = functools.partial(hj.matmul, out_dtype=out_dtype)
        d = jax.eval_shape(f, a, b)
        assert d.shape == (shapes[0][0], shapes[1][1]) and d.dtype == out_dtype
        g = jax.grad(lambda a, b, f=f: (f(a, b).astype(F32) ** 2).sum(), (0, 1))
        assert [(x.shape, x.dtype) for x in jax.eval_shape(g, a, b)] == [(s, BF16) for s in shapes]
        for program, calls in ((f, 1), (g, 3)):
            assert cuda_text(program, a, b).count("custom_call " + CALL) == calls * (0 not in sum(shapes, ()))


def test_unknown_config_is_refused_while_lowering():
    with pytest.raises(ValueError, match="config"):
        cuda_text(functools.partial(hj.matmul, config="no_such_config"), A, B)


# ---- the target ------------------------------------------------------------------------------------------


@pytest.fixture
def target():
    """Sets hopgemm.jax.target for one test."""
    yield functools.partial(setattr, hj, "target")
    hj.target = None


@pytest.mark.parametrize("bad", ["A100", 1.5, True, [132]])
def test_target_must_be_known(target, bad):
    target(bad)
    with pytest.raises(ValueError, match="hopgemm.jax: target is"):
        cuda_text(lambda a, b: hj.matmul(a, b), rand(16, 24), rand(24, 8))


def test_plan_is_asked_for_the_target(target, monkeypatch):
    asked = []
    plan = _core.plan
    monkeypatch.setattr(
        _core, "plan", lambda *args, **kwargs: (asked.append(kwargs), plan(*args, **kwargs))[1]
    )
    for value in ("H200", {"sm_count": 78}):
        target(value)
        cuda_text(lambda a, b: hj.matmul(a, b, sm_limit=64), rand(16, 8), rand(8, 24))
    first, second = asked
    assert first["device"] is None and second["facts"] == {"sm_count": 78}
    assert first["sm_limit"] == 64 and first["alignment"] == (128, 128, 128)


def gpu(monkeypatch, capability=(9, 0), driver=13000):
    """Make hopgemm.jax believe that jax has a GPU."""
    monkeypatch.setattr(_jax_target, "_visible_gpu", lambda: 0)

    def device_info(device):
        if driver < 13000:  # as the core does
            raise RuntimeError(
                f"hopgemm: the NVIDIA driver supports CUDA {driver // 1000}.{driver % 1000 // 10}; the "
                "kernel needs 13.0 (driver 580 or newer). Update the driver, or pass fallback=True"
            )
        return {
            "name": "Test GPU",
            "compute_capability": capability,
            "driver_version": driver,
            "sm_count": 100,
        }

    monkeypatch.setattr(_core, "device_info", device_info)
    plan = _core.plan
    monkeypatch.setattr(_core, "plan", lambda *args, device=None, **kwargs: plan(*args, **kwargs))
    _jax_target.warn_fallback.cache_clear()


UNSUPPORTED = [
    ((8, 0), 13000, "compute capability 8.0; the kernel needs 9.0"),
    ((10, 0), 13000, "10.0; the kernel needs 9.0"),
    ((9, 0), 12090, "the NVIDIA driver supports CUDA 12.9; the kernel needs 13.0 .driver 580"),
]


@pytest.mark.parametrize("capability, driver, message", UNSUPPORTED)
@pytest.mark.parametrize("kwargs", [{}, {"bias": rand(6)}], ids=["product", "epilogue"])
def test_unsupported_gpu(monkeypatch, capability, driver, message, kwargs):
    gpu(monkeypatch, capability, driver)
    with pytest.raises(RuntimeError, match=f"{message}.*fallback=True"):
        cuda_text(lambda a, b: hj.matmul(a, b, **kwargs), A, B)
    with pytest.warns(RuntimeWarning, match=f"{message}.*Using XLA's product"):
        text = cuda_text(lambda a, b: hj.matmul(a, b, fallback=True, **kwargs), A, B)
    assert CALL not in text and "dot_general" in text
    with pytest.raises(RuntimeError, match=f"{message}.*fallback=True"):
        hj.plan(lambda a, b: hj.matmul(a, b, **kwargs), A, B)
    (product,) = hj.plan(lambda a, b: hj.matmul(a, b, fallback=True, **kwargs), A, B)
    assert product.by == "xla" and re.search(message, product.reason)
    with warnings.catch_warnings(), hopgemm.fallback():
        warnings.simplefilter("error")  # said once
        assert "dot_general" in cuda_text(lambda a, b: hj.matmul(a, b, **kwargs), A, B)


def test_supported_gpu_and_named_target(monkeypatch, target):
    gpu(monkeypatch)
    assert CALL in cuda_text(lambda a, b: hj.matmul(a, b, fallback=True), A, B)
    gpu(monkeypatch, (8, 0))
    target("H200")  # planning for another machine: this one's GPU does not matter
    assert CALL in cuda_text(lambda a, b: hj.matmul(a, b), A, B)


def test_the_other_platforms_ask_nothing(monkeypatch):
    gpu(monkeypatch, (8, 0))
    assert (
        "dot_general"
        in jax.jit(lambda a, b: hj.matmul(a, b)).trace(A, B).lower(lowering_platforms=("cpu",)).as_text()
    )


# ---- loading ---------------------------------------------------------------------------------------------


def test_an_older_ffi_is_refused(monkeypatch):
    monkeypatch.setattr(_jax_target, "runtime_ffi_api", lambda: (0, 2))
    with pytest.raises(ImportError, match=r"XLA FFI API 0.2; this build needs 0\.\d+ or later.*pip install"):
        _jax_target.register()


def test_the_runtime_ffi_is_read():
    major, minor = _jax_target.runtime_ffi_api()
    assert major == 0 and minor >= 3


def test_importing_hopgemm_registers_nothing():
    code = "import jax, sys, hopgemm; assert not {'hopgemm.jax', 'hopgemm._core'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "code",
    [
        # hopgemm.jax is loaded inside the block by its first call: jit's key must hold the block all the same
        """
import hopgemm, jax, jax.numpy as jnp
a = jnp.ones((8, 8), jnp.bfloat16)
traces = []
f = jax.jit(lambda a: (traces.append(1), hopgemm.matmul(a, a))[1])
with hopgemm.sm_limit(8):
    f(a)
f(a)
assert len(traces) == 2, traces
""",
    ],
)
def test_loaded_inside_a_block(code):
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("precision", ["highest", "float32", "tensorfloat32", "BF16_BF16_F32"])
def test_the_global_precision_does_not_take_the_product_away(precision):
    with jax.default_matmul_precision(precision):
        assert CALL in cuda_text(lambda a, b: hj.matmul(a, b), A, B)
        assert CALL in cuda_text(lambda a, b: hj.matmul(a, b, bias=rand(6)), A, B)


@pytest.mark.parametrize("options", [{"precision": "highest"}, {"preferred_element_type": jnp.float16}])
def test_compute_dtype_rounds_what_xla_multiplies_too(options):
    a, b = rand(5, 7, dtype=jnp.float32) / 3, rand(7, 6, dtype=jnp.float32) / 7  # not bf16 values
    numbers = (((1,), (0,)), ((), ()))
    got = hj.dot_general_with(compute_dtype=jnp.bfloat16)(a, b, numbers, **options)
    want = jax.lax.dot_general(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), numbers, **options)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(np.asarray(got, "f4"), np.asarray(want, "f4"))


@pytest.mark.parametrize("flag", ["fallback", "batch_invariant"])
def test_a_flag_is_a_bool(flag):
    with pytest.raises(TypeError, match=f"{flag} is '0' .str.; it must be a bool or None"):
        hj.matmul(A, B, **{flag: "0"})
