"""What only the C++ operators show, over tests/cpp/naive_gemm.cc.

`test_torch_cpp.py` runs it in its own process.
"""

import ctypes
import gc
from pathlib import Path

import pytest
import torch

import hopgemm.torch
from hopgemm.torch import matmul

OPS = torch.ops.hopgemm
LIBRARY = ctypes.CDLL(str(Path(hopgemm.torch._core.__file__).with_name("libhopgemm.so")))
LIBRARY.naive_last_call.restype = ctypes.c_char_p


def last_call():
    return LIBRARY.naive_last_call().decode()


def integers(*shape, dtype=torch.bfloat16):
    return torch.randint(-3, 4, shape).to(dtype)


def test_the_operators_are_the_cpp_ones():
    matmul(integers(3, 8), integers(8, 5), sm_limit=3)
    assert last_call() == "config= sm_limit=3 batch_invariant=0 workspace=0"


def test_options_reach_the_kernel():
    a, b = integers(3, 8), integers(8, 5)
    matmul(a, b, config="naive", sm_limit=7, batch_invariant=True)
    assert last_call() == "config=naive sm_limit=7 batch_invariant=1 workspace=0"
    matmul(a, b, config="naive", out=integers(3, 5))
    assert last_call() == "config=naive sm_limit=0 batch_invariant=0 workspace=0"
    with hopgemm.batch_invariant():
        matmul(a, b)
    assert last_call() == "config= sm_limit=0 batch_invariant=1 workspace=0"


def test_workspace():
    matmul(integers(3, 7), integers(7, 5))
    assert last_call().endswith("workspace=1")


def test_status_codes_become_exceptions():
    a, b = integers(3, 8), integers(8, 5)
    with pytest.raises(ValueError, match="config is unknown; the only one is 'naive'"):
        matmul(a, b, config="other")
    with pytest.raises(RuntimeError, match="no Hopper GPU"):
        matmul(a, b, config="unsupported")
    with pytest.raises(ValueError, match="config is unknown"):
        matmul(a, b, config="x" * 1000)
    x = a.clone().requires_grad_()
    with pytest.raises(ValueError, match="config is unknown"):
        matmul(x, b, config="other")


def test_operator_messages():
    a, b = integers(3, 4), integers(4, 5)
    for args, text in (
        ((a, a), r"a is \(3, 4\) and b is \(3, 4\); the last dimension of a"),
        ((a[0], b), r"a is \(4\); 2 or more dimensions"),
        ((a, b.half()), "one dtype"),
        ((a.float(), b.float()), "one dtype, bfloat16 or float16"),
        ((a.double(), b.double()), "a has a dtype that no kernel takes"),
        ((integers(2, 3, 4), integers(3, 4, 5)), r"b is \(3, 4, 5\); its batch dimensions do not broadcast"),
        ((integers(*[1] * 7, 3, 4), b), "7 batch dimensions; at most 6"),
        ((a, b, a, None, 1.0, 1.0), r"c is \(3, 4\), which does not broadcast"),
        ((a, b, integers(2, 3, 5), None, 1.0, 1.0), "more dimensions than the result"),
        ((a, b, None, integers(4)), r"bias is \(4\); it needs one value for each of the 5 columns"),
        ((a, b, None, None, 1.0, 1.0), "beta is 1 but c is None"),
        ((a, b, None, None, 1.0, 0.0, torch.int32), "out has a dtype that no kernel takes"),
        ((a, b, None, None, 1.0, 0.0, None, "", -1), "sm_limit is -1"),
    ):
        with pytest.raises(ValueError, match=text):
            OPS.gemm(*args)
    with pytest.raises(ValueError, match=r"out is \(5, 3\), which is not the shape"):
        OPS.gemm_out(integers(5, 3), a, b)
    for out in (integers(5, 3), integers(1, 3, 5), integers(15)):
        with pytest.raises(ValueError, match=r"out is \(.*\), which is not the shape"):
            OPS._mm_out(out, a, b)
    with pytest.raises(ValueError, match="out has a dtype that no kernel takes"):
        OPS._mm_out(torch.zeros(3, 5, dtype=torch.int32), a, b)
    with pytest.raises(ValueError, match="the result overlaps an operand"):
        OPS._mm_out(a, a, integers(4, 4))
    with pytest.raises(ValueError, match=r"bias is \(4\); it needs one value for each of the 5 columns"):
        OPS._mm_bias(a, b, integers(4))


def test_operators_of_the_short_cuts():
    a, b, bias, out = integers(2, 3, 8), integers(8, 5), integers(5), integers(2, 3, 5)
    assert OPS._mm_out(out, a, b) is None
    assert torch.equal(out, OPS.gemm(a, b))
    assert torch.equal(OPS._mm_bias(a, b, bias), OPS.gemm(a, b, None, bias))
    assert torch.equal(OPS._mm_bias(a, b, bias.float()), OPS.gemm(a, b, None, bias))
    every_other = integers(2, 3, 10)[..., ::2]  # strides are the library's business
    assert OPS._mm_out(every_other, a, b) is None and torch.equal(every_other, out)


def test_mm_backward_takes_what_folds_and_refuses_the_rest():
    a, b = integers(2, 3, 8), integers(8, 5)
    g = integers(2, 3, 5)
    grad_a, grad_b = OPS._mm_backward(g, a, b)
    assert torch.equal(grad_a, g @ b.mT) and torch.equal(grad_b, a.flatten(0, 1).mT @ g.flatten(0, 1))
    padded = torch.nn.functional.pad(g, (0, 3))[..., :-3]  # rows at one pitch fold too
    assert torch.equal(OPS._mm_backward(padded, a, b)[1], grad_b)
    with pytest.raises(ValueError, match="rows of grad do not fold"):
        OPS._mm_backward(g.transpose(0, 1).contiguous().transpose(0, 1), a, b)
    with pytest.raises(ValueError, match="not of one product"):
        OPS._mm_backward(integers(2, 3, 4), a, b)
    with pytest.raises(ValueError, match="batch dimensions of grad, a and b differ"):
        OPS._mm_backward(integers(2, 3, 5), integers(2, 3, 8), integers(1, 8, 5))


def resident_kib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def test_nothing_leaks():
    a, b, c, bias = integers(4, 8), integers(8, 8), integers(4, 8), integers(8)
    x = a.clone().requires_grad_()

    def refused():
        with pytest.raises(ValueError):
            OPS.gemm(a, a, c, bias, 1.0, 1.0, torch.float32, "naive")

    calls = [
        (lambda: matmul(a, b), 20000),
        (lambda: matmul(a, b, c=c, bias=bias, beta=1.0, out_dtype=torch.bfloat16, config="naive"), 20000),
        (lambda: matmul(a, b, out=c), 20000),
        (lambda: matmul(a, b, bias=bias), 20000),
        (lambda: matmul(a[:, :7], b[:7]), 20000),
        (lambda: matmul(x, b).sum().backward(), 3000),
        (refused, 3000),
    ]
    for call, times in calls:
        for _ in range(200):
            call()
        gc.collect()
        before = resident_kib()
        for _ in range(times):
            call()
        assert resident_kib() - before < 2000, (call, times)  # a handle a call would be 100 bytes x 20,000
