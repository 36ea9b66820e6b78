"""What hopgemm.torch.matmul refuses, and in which words. On CPU tensors.

`test_torch_cpp.py` runs this file again over the C++ operators.
"""

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch_cases import assert_same, canary, integers, raises, reference  # noqa: E402

import hopgemm.torch  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402


def test_type_errors_name_both():
    a, b = integers(3, 4), integers(4, 5)
    with raises(TypeError, r"a is float64 \(3, 4\) on cpu; supported: bfloat16, float16", "Cast it"):
        matmul(a.double(), b)
    for dtype in (torch.float32, torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn):
        with raises(TypeError, "supported: bfloat16, float16"):
            matmul(a.to(dtype), b.to(dtype))
        with raises(TypeError, "supported: bfloat16, float16"):
            matmul(a.to(dtype), b.to(dtype), out_dtype=torch.float32)
    with raises(TypeError, "a is complex64", "supported: bfloat16, float16"):
        matmul(torch.complex(a.float(), a.float()).conj(), b)
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
    with raises(TypeError, "bias is 1.0 .float."):
        matmul(a, b, bias=1.0)
    with raises(TypeError, "c is 1.0 .float."):
        matmul(a, b, c=1.0, beta=1.0)
    with raises(TypeError, "c is float16", "torch.float32"):
        matmul(a, b, c=integers(3, 5, dtype=torch.float16), beta=1.0)
    with raises(TypeError, "bias is float64"):
        matmul(a, b, bias=integers(5, dtype=torch.float64))
    with raises(TypeError, "alpha is a Tensor"):
        matmul(a, b, alpha=torch.tensor(2.0))
    with raises(TypeError, "beta is '1' .str."):
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


def test_scalars_that_float32_does_not_hold():
    a, b, c = integers(3, 4), integers(4, 5), integers(3, 5)
    for number in (1e300, -1e39, 1e-50, -1e-46, 10**40):
        with raises(ValueError, f"alpha is {number}".replace("+", "."), "as float32 holds", "Scale"):
            matmul(a, b, alpha=number)
        with raises(ValueError, "beta is ", "as float32 holds"):
            matmul(a, b, c=c, beta=number)
        with raises(ValueError, "alpha is ", "as float32 holds"):
            torch.ops.hopgemm.gemm(a, b, None, None, float(number))
        with raises(ValueError, "beta is ", "as float32 holds"):
            torch.ops.hopgemm.gemm_out(c, a, b, None, None, 1.0, float(number))
    ones = torch.ones(1, 1).bfloat16()
    for number in (float("inf"), -3.4e38, 2.0**-126, True):
        assert_same(matmul(ones, ones, alpha=number), torch.full((1, 1), float(number)).bfloat16())


def test_setting_errors():
    a, b = integers(3, 4), integers(4, 5)
    with raises(ValueError, "sm_limit is -1"):
        matmul(a, b, sm_limit=-1)
    with raises(TypeError, "sm_limit is 1.5 .float."):
        matmul(a, b, sm_limit=1.5)
    with raises(TypeError, "config is 3 .int."):
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


@pytest.mark.parametrize("flag", ["fallback", "batch_invariant"])
@pytest.mark.parametrize("value", ["0", 1, torch.tensor(True)])
def test_a_flag_is_a_bool(flag, value):
    a = torch.ones(2, 2).bfloat16()
    with pytest.raises(TypeError, match=f"{flag} is .*must be a bool or None"):
        matmul(a, a, **{flag: value})


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


def test_out_that_is_a_view_of_a_leaf():
    a, b, leaf = integers(8, 8), integers(8, 8), canary(2, 8, 8).requires_grad_()
    with raises(RuntimeError, "does not support automatic differentiation"):
        matmul(a, b, out=leaf[0])
    assert (leaf == -77).all()
    with torch.no_grad():
        matmul(a, b, out=leaf[0])
        assert_same(leaf[0], reference(a, b))
    assert (leaf[1] == -77).all() and leaf.is_leaf and leaf.requires_grad


def kinds(*shape):
    """Tensors of this shape that no product takes: how each is refused."""
    t = integers(*shape)
    i = t.float()
    for dtype in (torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int64):
        yield t.to(dtype), f"is {str(dtype)[6:]} "
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32, torch.complex64):
        yield t.to(dtype), f"is {str(dtype)[6:]} "
    for view in (torch.conj, lambda z: z.conj().imag, torch._neg_view):
        z = view(torch.complex(i, i))
        yield z, f"is {str(z.dtype)[6:]} "
    yield t.to_sparse(), "has layout torch.sparse_coo"
    yield t.to_mkldnn(), "has layout torch._mkldnn"
    if len(shape) == 2:
        yield torch.nested.nested_tensor([t, t], layout=torch.jagged), "has layout torch.jagged"
        yield t.to_sparse_csr(), "has layout torch.sparse_csr"


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*nested tensors", "ignore:ComplexHalf")
@pytest.mark.parametrize("name", ["a", "b", "c", "bias"])
def test_every_operand_of_every_wrong_kind(name):
    good = {"a": integers(3, 4), "b": integers(4, 5), "c": integers(3, 5), "bias": integers(5)}
    out = canary(3, 5)
    for bad, words in kinds(*good[name].shape):
        if bad.dtype == torch.float32 and name in ("c", "bias"):
            continue  # they may be
        given = good | {name: bad}
        for options in ({}, {"out": out}):
            with pytest.raises(TypeError, match=f"{name} {words}"):
                matmul(given["a"], given["b"], c=given["c"], beta=1.0, bias=given["bias"], **options)
        if name == "c":
            continue
        bias = {"bias": bad} if name == "bias" else {}
        with pytest.raises(TypeError, match=f"{name} {words}"):  # the short way
            matmul(given["a"], given["b"], **bias)
    assert (out == -77).all()
    assert_same(matmul(good["a"], good["b"]), reference(good["a"], good["b"]))


def test_other_kinds_of_device(monkeypatch):
    """By fake tensors, as no such device is here."""
    with FakeTensorMode():
        a, b = (torch.empty(shape, dtype=torch.bfloat16, device="xpu") for shape in ((3, 4), (4, 5)))
    with raises(RuntimeError, "a is on xpu", "supported: CUDA and CPU", "fallback=True"):
        hopgemm.torch._explain(a, b)
    monkeypatch.setattr(hopgemm.torch, "_runs_on", {})
    with pytest.warns(RuntimeWarning, match="xpu:0 is not a CUDA device; torch's own product is used"):
        assert not hopgemm.torch._kernel_runs_on(a.device)


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*nested tensors")
@pytest.mark.parametrize("convert", ["to_sparse", "to_sparse_csr", "to_mkldnn"])
def test_layout_of_out(convert):
    bad = getattr(integers(3, 5), convert)()
    for options in ({}, {"bias": integers(5)}, {"c": integers(3, 5), "beta": 1.0}):
        with raises(TypeError, "out has layout torch"):
            matmul(integers(3, 4), integers(4, 5), out=bad, **options)


@pytest.mark.parametrize("name", ["a", "b", "c", "bias", "out"])
def test_nested_tensors_of_strides(name):
    given = {"a": integers(3, 4), "b": integers(4, 5)}
    given |= {name: torch.nested.nested_tensor([integers(3, 4), integers(2, 4)])}
    with raises(TypeError, f"{name} is a nested tensor"):
        matmul(given.pop("a"), given.pop("b"), **given, beta=float(name == "c"))


def test_negated_views():
    """As an operand it is read with its sign, as c beside the tensor that it negates too; it is no out."""
    a, b, buffer = integers(8, 8), integers(8, 8), integers(8, 8)
    want = reference(a, b, c=-buffer, beta=1.0)
    assert_same(matmul(a, b, c=torch._neg_view(buffer), beta=1.0), want)
    assert_same(matmul(torch._neg_view(a), b), -reference(a, b))
    assert_same(matmul(a, b, out=buffer, c=torch._neg_view(buffer), beta=1.0), want)
    for options in ({}, {"bias": integers(8)}, {"alpha": 2.0}):
        with raises(TypeError, "out is a negated view"):
            matmul(a, b, out=torch._neg_view(buffer), **options)
