"""What hopgemm.torch.override() takes and computes, and what it leaves to torch, in torch's own words.

Over tests/cpp/naive_gemm.cc, which puts it at the CPU key; `test_torch_cpp.py` runs it in its own process.
"""

import threading

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
import torch_aten_cases
from torch_aten_cases import CALLS, OPERATORS, failure, integers, operands, product

from hopgemm.torch import override

restored = torch_aten_cases.restored


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("operator", CALLS)
def test_every_operator(operator, dtype):
    assert set(CALLS) == set(OPERATORS)
    tensors = operands(dtype)
    call, want = CALLS[operator]
    with override() as o:
        d = call(*tensors)
    assert d.dtype == dtype and torch.equal(d, want(*tensors).to(dtype))
    if dtype == torch.float32:
        assert o.taken == {} and o.left == {"dtype": 1}
    else:
        assert o.taken == {operator: 1} and o.left == {}
    call(*tensors)
    assert sum(o.taken.values()) + sum(o.left.values()) == 1  # nothing is counted outside


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 1), (1, 1), (3, 5)])
def test_addends_broadcast(shape):
    a, b, *_ = operands()
    c = integers(*shape)
    for beta in (1, 1.0, 0.5, 0, True):
        with override() as o:
            d = torch.addmm(c, a, b, beta=beta)
        assert torch.equal(d, (beta * c.double() + product(a, b)).bfloat16()) and o.taken == {"addmm": 1}
    nan = torch.full(shape, float("nan")).bfloat16()
    with override():
        assert torch.equal(torch.addmm(nan, a, b, beta=0), product(a, b).bfloat16())


def test_strides_and_in_place():
    a, b, c = integers(8, 3).t(), integers(5, 8).t(), integers(3, 10)[:, ::2]
    want = c.double() + product(a, b)
    with override() as o:
        assert torch.equal(torch.addmm(c, a, b), want.bfloat16())
        c.addmm_(a, b)  # c is the result too
        assert torch.equal(c, want.bfloat16())
    assert o.taken == {"addmm": 1}  # in-place forms are operators of their own, and stay with torch


def test_sizes_of_nothing():
    with override() as o:
        assert torch.mm(integers(0, 3), integers(3, 2)).shape == (0, 2)
        assert not torch.mm(integers(2, 0), integers(0, 3)).any()
        assert torch.equal(
            torch.addmm(integers(2), integers(3, 0), integers(0, 2), beta=0), torch.zeros(3, 2).bfloat16()
        )
    assert sum(o.taken.values()) + sum(o.left.values()) == 3


def test_functional_linear_of_every_rank():
    w, bias = integers(5, 8), integers(5)
    for shape in ((8,), (3, 8), (2, 3, 8)):
        x = integers(*shape)
        with override() as o:
            y = F.linear(x, w, bias)
        assert torch.equal(y, F.linear(x.double(), w.double(), bias.double()).bfloat16())
        assert o.taken == {"addmm": 1} and not o.left, shape


def test_an_overlapping_result_is_torchs_to_judge():
    buffer = integers(9, 8)
    square = integers(8, 8)
    cases = [
        lambda: torch.mm(buffer[:8], square, out=buffer[1:]),
        lambda: torch.mm(square, square, out=square),
    ]
    assert_same_failures(cases)


def test_training_with_autocast_and_who_took_what():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4, bias=False))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(integers(*p.shape))
    x = integers(6, 8, dtype=torch.float32)
    want = torch.autograd.grad(model.double()(x.double()).sum(), model.parameters())
    model.float()
    with override() as o:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        got = torch.autograd.grad(y.sum(), model.parameters())
    assert all(torch.equal(p.double(), q) for p, q in zip(got, want, strict=True))
    assert o.taken == {"addmm": 1, "mm": 4} and o.left == {}  # forward 2; backward 3, none for x
    assert repr(o) == str(o) and "taken: mm 4, addmm 1; left: none" in str(o)


def test_the_backward_of_another_thread_is_taken_too():
    """Autograd runs the backward of CUDA tensors on threads of its own."""
    a, b = integers(3, 8, grad=True), integers(8, 5, grad=True)
    with override() as o:
        loss = torch.mm(a, b).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start(), thread.join()
    assert o.taken == {"mm": 3}


def test_deterministic_algorithms_are_satisfied():
    a, b, *_ = operands()
    torch.use_deterministic_algorithms(True)
    try:
        with override() as o:
            assert torch.equal(torch.mm(a, b), torch.mm(a, b))
    finally:
        torch.use_deterministic_algorithms(False)
    assert o.taken == {"mm": 2}


def test_what_inductor_calls():
    layer = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(integers(*p.shape))
    x = integers(3, 8, grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.mm(layer(x).relu(), layer.weight).sum(), fullgraph=True)
    compiled(x).backward()  # compiled outside of the block
    got = []
    for _ in range(2):
        with override() as o:
            x.grad = None
            compiled(x).backward()
        got.append((sum(o.taken.values()), o.left, x.grad))
    assert [calls for calls, _, _ in got] == [6, 6] and got[0][1] == got[1][1] == {}
    assert torch.equal(got[0][2], got[1][2])


def assert_same_failures(calls):
    want = [failure(call) for call in calls]
    with override():
        got = [failure(call) for call in calls]
    for ours, theirs in zip(got, want, strict=True):
        assert ours == theirs


def test_errors_are_torchs_own():
    a, b, c, x, y, z = operands()
    wrong = [
        lambda: torch.mm(a, a), lambda: torch.mm(a, b.half()), lambda: torch.mm(a[0], b),
        lambda: torch.mm(x, y), lambda: torch.bmm(x, y[:1]), lambda: torch.bmm(a, b),
        lambda: torch.addmm(a, a, b), lambda: torch.addmm(integers(7), a, b),
        lambda: torch.addmm(c.float(), a, b), lambda: torch.addmm(c, a, a), lambda: torch.baddbmm(c, x, x),
        lambda: torch.mm(a, b, out=c.int()), lambda: torch.mm(a.int(), a.int()),
        lambda: torch.addmm(c, a, b, out=c.float()), lambda: torch.addmm(c, a, b, beta=1j),
        lambda: torch.addmm(c, a, b, alpha=1e300), lambda: torch.baddbmm(z, x, y, beta=1e300),
    ]  # fmt: skip
    assert None not in [failure(call) for call in wrong]
    assert_same_failures(wrong)


def test_no_memory_for_the_result_is_in_torchs_words():
    a, b = integers(1, 1).expand(2**20, 1), integers(1, 1).expand(1, 2**40)
    calls = [
        lambda: torch.mm(a, b), lambda: torch.bmm(a[None], b[None]),
        lambda: torch.addmm(integers(1), a, b), lambda: torch.baddbmm(integers(1), a[None], b[None]),
    ]  # fmt: skip
    assert all("allocate" in failure(call)[1] for call in calls)
    assert_same_failures(calls)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_the_rest_is_left_to_torch():
    a, b, c, *_ = operands()
    i, z = torch.arange(6).view(2, 3), torch.randn(3, 3, dtype=torch.complex64)
    with override() as o:
        assert torch.equal(torch.mm(i, i.t()), torch.tensor([[5, 14], [14, 50]]))
        square = torch.from_numpy(z.numpy() @ z.numpy())
        torch.testing.assert_close(torch.mm(z, z), square)
        torch.testing.assert_close(torch.addmm(z, z, z, beta=1j), 1j * z + square)
        assert torch.equal(torch.mm(torch.eye(3).to_sparse(), torch.ones(3, 3)), torch.ones(3, 3))
        out = torch.empty(0, dtype=torch.bfloat16)
        assert torch.equal(torch.mm(a, b, out=out), product(a, b).bfloat16()) and out.shape == (3, 5)
        assert torch.equal(torch.mm(torch._neg_view(a), b), -product(a, b).bfloat16())
    assert o.taken == {"mm": 1} and o.left == {"dtype": 2, "arguments": 2}
