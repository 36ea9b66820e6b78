"""hopgemm.torch.matmul under torch's modes and hopgemm's settings, and its fallback. On CPU tensors.

`test_torch_cpp.py` runs this file again over the C++ operators.
"""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch_cases import assert_same, integers, raises, reference  # noqa: E402

import hopgemm  # noqa: E402
import hopgemm.torch  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402

# ---- modes of torch ----


def test_low_precision_setting_keeps_fp16_exact():
    torch.manual_seed(0)
    a, b = (torch.randn(64, 64).half() for _ in range(2))
    want = matmul(a, b, out_dtype=torch.float32)
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        got = matmul(a, b, out_dtype=torch.float32)
    finally:
        settings.fp32_precision = before
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)  # bf16 products would be off by 0.05


def test_autocast_follows_torch_matmul():
    a32, b32 = integers(3, 4, dtype=torch.float32), integers(4, 5, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            assert_same(matmul(a32, b32), torch.matmul(a32, b32))
            assert_same(matmul(a32, b32.to(dtype)), torch.matmul(a32, b32))
            assert_same(torch.ops.hopgemm.gemm(a32, b32), torch.matmul(a32, b32))
            bias = integers(5, dtype=torch.float32)
            assert matmul(a32, b32, bias=bias, out_dtype=torch.float32).dtype == torch.float32
            assert_same(matmul(a32, b32, bias=bias), torch.matmul(a32, b32) + bias.to(dtype))
            with torch.autocast("cpu", enabled=False), raises(TypeError, "a is float32"):
                matmul(a32, b32)
            with raises(TypeError, "a is float64"):
                matmul(a32.double(), b32.double())


def test_deterministic_algorithms():
    """Nothing warns or raises; memory that torch then fills with NaN does not show."""
    a, b = integers(3, 4).requires_grad_(), integers(4, 5).requires_grad_()
    row, bias = integers(1, 5).requires_grad_(), integers(5).requires_grad_()
    leaves = a, b, row, bias
    step = lambda: torch.autograd.grad(matmul(a, b, c=row, beta=2.0, bias=bias).sum(), leaves)
    want = step()
    torch.use_deterministic_algorithms(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for got, exact in zip(step(), want, strict=True):
                assert_same(got, exact)
            with torch.no_grad():
                assert_same(matmul(a[:, :0], b[:0]), torch.zeros(3, 5).bfloat16())
                assert_same(matmul(a, b, out=torch.empty(3, 5).bfloat16()), reference(a, b))
    finally:
        torch.use_deterministic_algorithms(False)


def test_inference_mode():
    a, b = integers(3, 4).requires_grad_(), integers(4, 5)
    with torch.inference_mode():
        d = matmul(a, b)
        assert d.is_inference() and not d.requires_grad
        assert_same(matmul(a, b, out=d), reference(a, b))


def test_subclasses_and_parameters():
    class Tagged(torch.Tensor):
        pass

    a, b = integers(3, 4), integers(4, 5)
    assert type(matmul(a.as_subclass(Tagged), b)) is Tagged
    assert_same(matmul(torch.nn.Parameter(a), b).detach(), reference(a, b))


# ---- settings and fallback ----


@pytest.fixture
def seen(monkeypatch):
    """The options that reach the operator, in order of the calls."""
    calls = []
    original = hopgemm.torch._product

    def record(*args):
        calls.append(args[-3:])
        return original(*args)

    monkeypatch.setattr(hopgemm.torch, "_product", record)
    return calls


def test_settings_become_arguments(seen):
    a, b = integers(3, 4), integers(4, 5)
    with hopgemm.batch_invariant():
        matmul(a, b)
        with hopgemm.sm_limit(7):
            matmul(a, b)
            matmul(a, b, sm_limit=0, batch_invariant=False, out_dtype=torch.float32)
    matmul(a, b, sm_limit=3)
    assert seen == [("", 0, True), ("", 7, True), ("", 0, False), ("", 3, False)]


class _OtherGpu:
    """Makes CPU tensors look like tensors on a GPU that the kernel does not know."""

    def __init__(self, monkeypatch):
        def plan(*args, device, **options):
            raise RuntimeError("hopgemm: GPU 0 has compute capability 8.0; 9.0 is needed")

        class Device:
            type, index = "cuda", 0

        self.device = Device()
        monkeypatch.setattr(hopgemm.torch._core, "plan", plan)
        monkeypatch.setattr(hopgemm.torch, "_runs_on", {})
        runs_on = hopgemm.torch._kernel_runs_on
        monkeypatch.setattr(hopgemm.torch, "_kernel_runs_on", lambda device: runs_on(self.device))


def test_fallback_on_another_gpu(monkeypatch, seen):
    _OtherGpu(monkeypatch)
    a, b, c, bias = integers(3, 4), integers(4, 5), integers(3, 5), integers(5)
    with pytest.warns(
        RuntimeWarning, match="compute capability 8.0; 9.0 is needed; torch's own product is used"
    ):
        assert_same(matmul(a, b, fallback=True), reference(a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # warned once
        with hopgemm.fallback():
            options = {"c": c, "bias": bias, "alpha": 2.0, "beta": 0.5, "out_dtype": torch.float32}
            assert_same(matmul(a, b, **options), reference(a, b, **options))
            with raises(TypeError, "c is float16"):
                matmul(a, b, c=c.half(), beta=1.0)
            out = integers(3, 5)
            want = reference(a, b, c=out, beta=1.0)
            assert_same(matmul(a, b, c=out, beta=1.0, out=out), want)
            assert_same(matmul(a[0], b), reference(a[0], b))
            x = a.clone().requires_grad_()
            matmul(x, b).sum().backward()
            assert_same(x.grad, reference(torch.ones(3, 5).bfloat16(), b.mT))
    assert not seen  # nothing went to the kernel
    matmul(a, b, fallback=False, sm_limit=1)
    assert len(seen) == 1


def test_fallback_is_not_taken_where_the_kernel_runs(seen):
    matmul(integers(3, 4), integers(4, 5), fallback=True)
    assert len(seen) == 1
