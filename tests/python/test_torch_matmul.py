"""hopgemm.torch.matmul on CPU tensors: shapes, epilogue, out=, errors, settings, fallback.

`test_torch_cpp.py` runs this file again over the C++ operators.
"""

import itertools
import warnings

import pytest

torch = pytest.importorskip("torch")

import hopgemm  # noqa: E402
import hopgemm.torch  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402

SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((1, 3, 4), (1, 4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 1, 1, 2, 1, 2, 3, 4), (3, 1, 2, 1, 4, 5)),
]
EMPTY = [shape for shape in itertools.product((0, 5), repeat=3) if 0 in shape]


def integers(*shape, dtype=torch.bfloat16, low=-3, high=3):
    """Small integers: every sum below is exact in fp32, so results are compared bit for bit."""
    return torch.randint(low, high + 1, shape).to(dtype)


def reference(a, b, c=None, bias=None, alpha=1.0, beta=0.0, out_dtype=None):
    d = alpha * torch.matmul(a.double(), b.double())
    if beta:
        d = d + beta * c.double()
    if bias is not None:
        d = d + bias.double()
    return d.to(out_dtype or a.dtype)


def assert_same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got, want)


def raises(kind, *texts):
    return pytest.raises(kind, match="(?s)" + ".*".join(texts))


# ---- shapes and the epilogue ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_shapes_of_torch_matmul(shape_a, shape_b, dtype):
    a, b = integers(*shape_a, dtype=dtype), integers(*shape_b, dtype=dtype)
    assert_same(matmul(a, b), reference(a, b))
    assert matmul(a, b).is_contiguous()
    assert_same(matmul(a, b, out_dtype=torch.float32), reference(a, b, out_dtype=torch.float32))


@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize("c_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_epilogue(shape_a, shape_b, c_dtype, out_dtype):
    a, b = integers(*shape_a), integers(*shape_b)
    shape = torch.matmul(a, b).shape
    for c_shape in {shape, shape[1:], shape[:-1] + (1,) if shape else shape, ()}:
        c = integers(*c_shape, dtype=c_dtype)
        bias = integers(5, dtype=c_dtype) if len(shape_b) > 1 else None
        options = {"c": c, "bias": bias, "alpha": 2.0, "beta": 0.5, "out_dtype": out_dtype}
        assert_same(matmul(a, b, **options), reference(a, b, **options))


def test_one_rounding():
    # 256 + 1 is not a bfloat16: rounding the product before adding c would lose the 1; the sum would be 256.
    a, b = torch.full((1, 64), 2.0).bfloat16(), torch.full((64, 1), 2.0).bfloat16()
    c, bias = torch.tensor([[1.0]]).bfloat16(), torch.tensor([1.0]).bfloat16()
    assert matmul(a, b, c=c, beta=1.0, bias=bias).item() == 258
    ones = torch.ones(1, 1029).bfloat16()
    assert matmul(ones, ones.mT).item() == 1032 and matmul(-ones, ones.mT).item() == -1032
    half = torch.ones(1, 2049).half()
    assert matmul(half, half.mT).item() == 2048


def test_alpha_and_beta_zero_read_nothing():
    a, b, nan = integers(3, 4), integers(4, 5), torch.full((3, 5), float("nan")).bfloat16()
    assert_same(matmul(a, b, c=nan, beta=0), reference(a, b))
    assert_same(matmul(a, b, out=nan.clone()), reference(a, b))
    assert_same(matmul(a * float("nan"), b, alpha=0, c=(c := integers(3, 5)), beta=2), (2 * c))


@pytest.mark.parametrize("m, n, k", EMPTY)
def test_empty(m, n, k):
    a, b = integers(m, k).requires_grad_(), integers(k, n).requires_grad_()
    c, bias = integers(m, n), integers(n)
    d = matmul(a, b)
    assert_same(d.detach(), torch.zeros(m, n).bfloat16())
    assert_same(matmul(a, b, c=c, beta=1, bias=bias).detach(), c + bias)
    d.sum().backward()
    assert a.grad.shape == a.shape and b.grad.shape == b.shape and not a.grad.any() and not b.grad.any()
    assert matmul(integers(0, m, k), integers(k, n)).shape == (0, m, n)
    out = torch.full((m, n), float("nan")).bfloat16()
    assert_same(matmul(a.detach(), b.detach(), out=out), torch.zeros(m, n).bfloat16())


VIEWS = {
    "plain": lambda t: t.contiguous(),
    "transposed": lambda t: t.mT.contiguous().mT,
    "padded": lambda t: torch.nn.functional.pad(t, (1, 2), value=float("nan"))[..., 1:-2],
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "rows_strided": lambda t: t.repeat_interleave(3, -2)[..., ::3, :],
    "expanded": lambda t: t[..., :1, :].expand(t.shape),
    "expanded_columns": lambda t: t[..., :1].expand(t.shape),
    "batch_last": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
}


@pytest.mark.parametrize("view_b", VIEWS)
@pytest.mark.parametrize("view_a", VIEWS)
def test_strides(view_a, view_b):
    for shape_a, shape_b in (((7, 9), (9, 8)), ((2, 7, 9), (2, 9, 8)), ((2, 7, 9), (9, 8))):
        a, b = VIEWS[view_a](integers(*shape_a)), VIEWS[view_b](integers(*shape_b))
        assert_same(matmul(a, b), reference(a, b))
        c = VIEWS[view_a](integers(*matmul(a, b).shape))
        assert_same(matmul(a, b, c=c, beta=1), reference(a, b, c=c, beta=1))


def test_negated_view_and_meta():
    a, b = integers(3, 4), integers(4, 5)
    assert_same(matmul(torch._neg_view(a), b), reference(-a, b))
    assert matmul(a.to("meta"), b.to("meta"), out_dtype=torch.float32).dtype == torch.float32


# ---- out= ----


def canary(*shape, dtype=torch.bfloat16):
    return torch.full(shape, -77.0).to(dtype)


OUTS = {  # name: (buffer's shape, view of (6, 8) in it)
    "plain": ((6, 8), lambda t: t),
    "columns": ((6, 15), lambda t: t[:, 3:11]),
    "rows": ((12, 8), lambda t: t[::2]),
    "transposed": ((8, 6), lambda t: t.mT),
    "inner_stride": ((6, 16), lambda t: t[:, ::2]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", OUTS)
def test_out_layouts(layout, dtype):
    a, b, bias = integers(6, 7), integers(7, 8), integers(8, dtype=dtype)
    shape, view = OUTS[layout]
    buffer = canary(*shape, dtype=dtype)
    out = view(buffer)
    strides, version = out.stride(), out._version
    assert matmul(a, b, out=out, bias=bias) is out
    assert out.stride() == strides and out._version > version
    assert_same(out, reference(a, b, bias=bias, out_dtype=dtype))
    untouched = torch.ones(shape, dtype=torch.bool)
    view(untouched).zero_()
    assert (buffer[untouched] == -77).all()
    # accumulate: c is out, as the same tensor or as another view of the same elements
    before = out.clone()
    matmul(a, b, out=out, c=out if layout == "plain" else view(buffer), beta=2.0)
    assert_same(out, reference(a, b, c=before, beta=2.0, out_dtype=dtype))
    # c elsewhere; beta = 0 with c = out does not read it
    c = integers(6, 8, dtype=dtype)
    assert_same(matmul(a, b, out=out, c=c, beta=1.0), reference(a, b, c=c, beta=1.0, out_dtype=dtype))
    out.fill_(float("nan"))
    assert_same(matmul(a, b, out=out, c=out), reference(a, b, out_dtype=dtype))


@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_out_shapes(shape_a, shape_b):
    a, b = integers(*shape_a), integers(*shape_b)
    want = reference(a, b)
    out = torch.full_like(want, float("nan"))
    assert matmul(a, b, out=out) is out
    assert_same(out, want)
    assert_same(matmul(a, b, out=out, c=out, beta=1), 2 * want)


def test_out_refusals():
    a, b = integers(8, 8), integers(8, 8)
    out = canary(8, 8)
    for overlapping in (a, a.mT, b):
        with raises(ValueError, "out overlaps [ab] in memory"):
            matmul(a, b, out=overlapping)
    buffer = integers(9, 8)
    with raises(ValueError, "out overlaps a in memory"):
        matmul(buffer[:8], b, out=buffer[1:])
    with raises(ValueError, "out overlaps bias"):
        matmul(a, b, out=out, bias=out[2])
    with raises(ValueError, "out overlaps c"):
        matmul(a, b, out=out, c=out[:1], beta=1)
    with raises(ValueError, "several elements in one place"):
        matmul(a, b, out=canary(8).expand(8, 8))
    with raises(ValueError, r"out is .*\(8, 7\)", r"\(8, 8\)"):
        matmul(a, b, out=canary(8, 7))
    with raises(ValueError, "out is"):
        matmul(a, b, out=canary(0))
    with raises(TypeError, "float64"):
        matmul(a, b, out=canary(8, 8).double())
    with raises(TypeError, "out is torch.bfloat16 but out_dtype is torch.float32"):
        matmul(a, b, out=out, out_dtype=torch.float32)
    with raises(TypeError, "out is a list"):
        matmul(a, b, out=[1])
    with raises(RuntimeError, "does not support automatic differentiation"):
        matmul(a.clone().requires_grad_(), b, out=out)
    with raises(RuntimeError, "does not support automatic differentiation"):
        matmul(a, b, out=out.clone().requires_grad_())
    assert (out == -77).all()
    with torch.no_grad():
        assert_same(matmul(a.clone().requires_grad_(), b, out=out), reference(a, b))


def test_out_beside_its_operand_in_one_buffer():
    buffer = integers(8, 24)
    a, b, out = buffer[:, :8], integers(8, 16), buffer[:, 8:]
    want = reference(a, b)
    try:
        matmul(a, b, out=out.mT.mT)
    except ValueError as error:  # a kernel may see only that the ranges cross
        assert "overlap" in str(error)
    else:
        assert_same(out, want)


def test_out_of_a_saved_tensor_is_noticed():
    x = integers(4, 4).requires_grad_()
    y = x * 2
    loss = (y * y).sum()
    with torch.no_grad():
        matmul(integers(4, 4), integers(4, 4), out=y)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()


# ---- refusals ----


def test_type_errors_name_both():
    a, b = integers(3, 4), integers(4, 5)
    with raises(TypeError, r"a is float64 \(3, 4\) on cpu; supported: bfloat16, float16", "Cast it"):
        matmul(a.double(), b)
    for dtype in (torch.float32, torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn):
        with raises(TypeError, "supported: bfloat16, float16"):
            matmul(a.to(dtype), b.to(dtype))
        with raises(TypeError, "supported: bfloat16, float16"):
            matmul(a.to(dtype), b.to(dtype), out_dtype=torch.float32)
    with raises(TypeError, "a is bfloat16 .* and b is float16", "one dtype"):
        matmul(a, b.half())
    with raises(TypeError, "a is bfloat16 .* and b is float16", "one dtype"):
        matmul(a.clone().requires_grad_(), b.half())
    with raises(TypeError, "a is a Tensor and b is a list"):
        matmul(a, [1.0])
    with raises(TypeError, "a is a ndarray and b is a Tensor"):
        matmul(a.float().numpy(), b)
    with raises(TypeError, "out_dtype is torch.float16"):
        matmul(a, b, out_dtype=torch.float16)
    with raises(TypeError, "bias is a float"):
        matmul(a, b, bias=1.0)
    with raises(TypeError, "c is a float"):
        matmul(a, b, c=1.0, beta=1.0)
    with raises(TypeError, "c is float16", "torch.float32"):
        matmul(a, b, c=integers(3, 5, dtype=torch.float16), beta=1.0)
    with raises(TypeError, "bias is float64"):
        matmul(a, b, bias=integers(5, dtype=torch.float64))
    with raises(TypeError, "alpha is a Tensor"):
        matmul(a, b, alpha=torch.tensor(2.0))
    with raises(TypeError, "beta is a str"):
        matmul(a, b, c=a, beta="1")
    with raises(TypeError, "layout torch.sparse_coo"):
        matmul(a.to_sparse(), b)
    with raises(TypeError, "cpu and b is .* on meta", "one device"):
        matmul(a, b.to("meta"))


def test_value_errors_name_shapes():
    a, b = integers(3, 4), integers(4, 5)
    with raises(ValueError, r"a is bfloat16 \(3, 4\)", r"b is bfloat16 \(3, 4\)", "transpose"):
        matmul(a, a)
    with raises(ValueError, r"\(3,\)", r"\(4, 5\)"):
        matmul(integers(3), b)
    with raises(ValueError, "0-d"):
        matmul(a, integers())
    with raises(ValueError, "batch dimensions must broadcast"):
        matmul(integers(2, 3, 4), integers(3, 4, 5))
    with raises(ValueError, "at most 6"):
        matmul(integers(*[1] * 7, 3, 4), b)
    with raises(ValueError, r"c is bfloat16 \(3, 4\)", r"\(3, 5\)"):
        matmul(a, b, c=a, beta=1)
    with raises(ValueError, "c is"):
        matmul(a, b, c=integers(2, 3, 5), beta=1)
    with raises(ValueError, r"bias is bfloat16 \(4,\)", "each of the 5 columns"):
        matmul(a, b, bias=integers(4))
    with raises(ValueError, "one dimension"):
        matmul(a, b, bias=integers(1, 5))
    with raises(ValueError, "no columns for a bias"):
        matmul(a, integers(4), bias=integers(3))
    with raises(ValueError, "c is .*1 dimensions"):
        matmul(a, integers(4), c=integers(1, 3), beta=1)
    with raises(ValueError, "beta is 0.5 but c is None"):
        matmul(a, b, beta=0.5)


def test_setting_errors():
    a, b = integers(3, 4), integers(4, 5)
    with raises(ValueError, "sm_limit is -1"):
        matmul(a, b, sm_limit=-1)
    with raises(TypeError, "sm_limit is a float"):
        matmul(a, b, sm_limit=1.5)
    with raises(TypeError, "config is a int"):
        matmul(a, b, config=3)


def test_public_operator_refuses_too():
    gemm = torch.ops.hopgemm.gemm
    a, b = integers(3, 4), integers(4, 5)
    assert_same(gemm(a, b), reference(a, b))
    for bad in ((a, a), (a.float(), b.float()), (a, b.half()), (a[0], b)):
        with pytest.raises((TypeError, ValueError)):
            gemm(*bad)
    with raises(ValueError, "beta is 1 but c is None|beta is 1.0 but c is None"):
        gemm(a, b, None, None, 1.0, 1.0)


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


@pytest.mark.parametrize("flag", ["fallback", "batch_invariant"])
@pytest.mark.parametrize("value", ["0", 1, torch.tensor(True)])
def test_a_flag_is_a_bool(flag, value):
    a = torch.ones(2, 2).bfloat16()
    with pytest.raises(TypeError, match=f"{flag} is .*must be a bool or None"):
        hopgemm.torch.matmul(a, a, **{flag: value})
