"""The short cuts of hopgemm.torch.matmul: which calls take one, and that they compute and refuse the same.

`test_torch_cpp.py` runs this file again over the C++ operators.
"""

import pytest

torch = pytest.importorskip("torch")

from torch_cases import SHAPES, assert_same, canary, integers, raises, reference  # noqa: E402

import hopgemm  # noqa: E402
import hopgemm.torch  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402


@pytest.fixture
def taken(monkeypatch):
    """The names of the short cuts that calls took, in order."""
    names = []
    for name in ("_raw_mm", "_raw_mm_bias", "_raw_mm_out", "_mm_with_gradient"):

        def record(*args, name=name, original=getattr(hopgemm.torch, name)):
            names.append(name)
            return original(*args)

        monkeypatch.setattr(hopgemm.torch, name, record)
    return names


@pytest.mark.parametrize("grad", [False, True])
def test_short_cuts_are_taken(taken, grad):
    a, b, bias, out = integers(3, 4), integers(4, 5), integers(5), canary(3, 5)
    x, y = integers(2, 3, 4), integers(2, 4, 5)
    with torch.set_grad_enabled(grad):
        assert_same(matmul(a, b), reference(a, b))
        assert_same(matmul(a, b, bias=bias), reference(a, b, bias=bias))
        assert_same(matmul(x, y, bias=bias.float()), reference(x, y, bias=bias))
        assert_same(matmul(a, b, out=out), reference(a, b))
        assert_same(matmul(x, b, out=canary(2, 3, 5)), reference(x, b))
    assert taken == ["_raw_mm", "_raw_mm_bias", "_raw_mm_bias", "_raw_mm_out", "_raw_mm_out"]
    matmul(torch.nn.Parameter(a), b)
    assert taken[5:] == ["_mm_with_gradient"]


def test_short_cuts_leave_the_rest_alone(taken):
    a, b, bias, out = integers(3, 4), integers(4, 5), integers(5), canary(3, 5)
    weight = torch.nn.Parameter(bias)
    matmul(a, b, bias=weight).sum().backward()
    assert_same(weight.grad, torch.full((5,), 3.0).bfloat16())
    assert_same(matmul(a, b, out=canary(5, 3).mT), reference(a, b))
    assert_same(matmul(a, b, out=out, bias=bias), reference(a, b, bias=bias))
    assert_same(matmul(a, b, bias=bias, alpha=2.0), reference(a, b, bias=bias, alpha=2.0))
    assert_same(matmul(a[0], b, bias=bias), reference(a[0], b, bias=bias))
    assert_same(matmul(a, b, out=out, c=bias, beta=1.0), reference(a, b, bias=bias))
    with hopgemm.sm_limit(3):
        matmul(a, b, out=out), matmul(a, b, bias=bias)
    assert not taken


def test_bias_refusals_without_an_epilogue(taken):
    a, b = integers(3, 4), integers(4, 5)
    for bias in (integers(4), integers(1), integers(0)):
        with raises(ValueError, r"bias is bfloat16", "each of the 5 columns"):
            matmul(a, b, bias=bias)
    with raises(TypeError, "bias is float16", "torch.float32"):
        matmul(a, b, bias=integers(5, dtype=torch.float16))
    with raises(TypeError, "bias is bfloat16 .* on meta", "one device"):
        matmul(a, b, bias=integers(5).to("meta"))
    with raises(ValueError, "transpose"):
        matmul(a, a, bias=integers(4))
    assert taken == ["_raw_mm_bias"] * 6
    with raises(ValueError, "one dimension"):
        matmul(a, b, bias=integers(3, 5))


def test_out_refusals_without_an_epilogue():
    a, b, out = integers(8, 8), integers(8, 8), canary(8, 8)
    grad, other = a.clone().requires_grad_(), out.clone().requires_grad_()
    with raises(ValueError, r"out is .*\(8, 7\)", r"the result's shape, \(8, 8\)"):
        matmul(a, b, out=canary(8, 7))
    for shape in ((1, 8, 8), (64,), ()):
        with raises(ValueError, "out is", r"the result's shape, \(8, 8\)"):
            matmul(a, b, out=canary(*shape))
    for dtype in (torch.float16, torch.int16, torch.float64):
        with raises(TypeError, f"out_dtype is {dtype}"):
            matmul(a, b, out=out.to(dtype))
    for device_a, device in (("cpu", "meta"), ("meta", "cpu")):  # a kernel of meta tensors writes nothing
        with raises(TypeError, f"out is bfloat16 .* on {device}", "one device"):
            matmul(a.to(device_a), b.to(device_a), out=out.to(device))
    with raises(TypeError, "a is bfloat16 .* and b is float16"):
        matmul(a, b.half(), out=out)
    with torch.autocast("cpu", dtype=torch.bfloat16), raises(TypeError, "a is float32"):  # as torch.mm(out=)
        matmul(a.float(), b, out=out)
    for args, d in (((grad, b), out), ((a, grad), out), ((a, b), other)):
        with raises(RuntimeError, "does not support automatic differentiation"):
            matmul(*args, out=d)
    buffer = torch.cat([a, b])
    for first in (0, 4, 7):
        with raises(ValueError, "out overlaps a in memory"):
            matmul(buffer[:8], b, out=buffer[first : first + 8])
    assert (out == -77).all() and (other == -77).all()
    assert_same(buffer, torch.cat([a, b]))
    assert_same(matmul(buffer[:8], b, out=buffer[8:]), reference(a, b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_out_is_told_to_autograd(shape_a, shape_b, dtype):
    a, b = integers(*shape_a), integers(*shape_b)
    want = reference(a, b, out_dtype=dtype)
    for grad in (False, True):
        out = torch.full_like(want, float("nan")).requires_grad_(not grad)
        version = out._version
        with torch.set_grad_enabled(grad):
            assert matmul(a, b, out=out) is out
        assert out._version > version and out.requires_grad is not grad
        assert_same(out.detach(), want)
