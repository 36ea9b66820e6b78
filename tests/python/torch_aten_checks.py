"""hopgemm.torch.override() over tests/cpp/naive_gemm.cc, which puts it at the CPU key.

`test_torch_cpp.py` runs it in its own process. What it takes, what it leaves and to whom, and that it goes
without a trace.
"""

import os
import subprocess
import sys
import threading
import warnings

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from torch.library import Library, get_kernel
from torch_cpp_checks import last_call, resident_kib

import hopgemm
from hopgemm._torch_aten import kernels
from hopgemm.torch import override

OPERATORS = kernels().operators


@pytest.fixture(autouse=True)
def restored():
    """Every test here must leave torch's kernels as it found them."""
    torch.manual_seed(0)
    before = standing()
    yield
    assert standing() == before and not kernels()._installed


def standing():
    return [repr(get_kernel(f"aten::{operator}", "CPU")) for operator in OPERATORS]


def integers(*shape, dtype=torch.bfloat16, grad=False):
    return torch.randint(-2, 3, shape).to(dtype).requires_grad_(grad)


def product(a, b):
    """In float64, by numpy: torch's own would be counted."""
    return torch.from_numpy(a.double().numpy() @ b.double().numpy())


def operands(dtype=torch.bfloat16):
    a, b, c = integers(3, 8, dtype=dtype), integers(8, 5, dtype=dtype), integers(3, 5, dtype=dtype)
    return a, b, c, a.expand(2, 3, 8), b.expand(2, 8, 5), c.expand(2, 3, 5)


CALLS = {  # of operands(): the call, its exact result in float64
    "mm": (lambda a, b, c, x, y, z: torch.mm(a, b), lambda a, b, c, x, y, z: product(a, b)),
    "mm.out": (
        lambda a, b, c, x, y, z: torch.mm(a, b, out=torch.empty_like(c)),
        lambda a, b, c, x, y, z: product(a, b),
    ),
    "bmm": (lambda a, b, c, x, y, z: torch.bmm(x, y), lambda a, b, c, x, y, z: product(x, y)),
    "bmm.out": (
        lambda a, b, c, x, y, z: torch.bmm(x, y, out=torch.empty(2, 3, 5, dtype=c.dtype)),
        lambda a, b, c, x, y, z: product(x, y),
    ),
    "addmm": (
        lambda a, b, c, x, y, z: torch.addmm(c, a, b, beta=0.5, alpha=2),
        lambda a, b, c, x, y, z: 0.5 * c.double() + 2 * product(a, b),
    ),
    "addmm.out": (
        lambda a, b, c, x, y, z: torch.addmm(c[0], a, b, out=torch.empty_like(c)),
        lambda a, b, c, x, y, z: c[0].double() + product(a, b),
    ),
    "baddbmm": (
        lambda a, b, c, x, y, z: torch.baddbmm(z, x, y, beta=2.0),
        lambda a, b, c, x, y, z: 2 * z.double() + product(x, y),
    ),
    "baddbmm.out": (
        lambda a, b, c, x, y, z: torch.baddbmm(z, x, y, out=torch.empty(2, 3, 5, dtype=c.dtype)),
        lambda a, b, c, x, y, z: z.double() + product(x, y),
    ),
}


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


def failure(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return type(error), str(error)
    return None


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


def test_nesting_and_exceptions():
    a, b, *_ = operands()
    with pytest.raises(KeyError):
        with override(sm_limit=3) as outer:
            with override(batch_invariant=True, sm_limit=7) as inner:
                torch.mm(a, b)
                assert last_call().startswith("config= sm_limit=7 batch_invariant=1")
            torch.mm(a, b)
            assert last_call().startswith("config= sm_limit=3 batch_invariant=0")
            assert inner.taken == {"mm": 1} and outer.taken == {"mm": 2}
            raise KeyError
    torch.mm(a, b)
    assert outer.taken == {"mm": 2}


def test_settings_of_the_enclosing_blocks():
    a, b, *_ = operands()
    with hopgemm.batch_invariant(), hopgemm.sm_limit(9):
        with override():
            torch.mm(a, b)
        assert last_call().startswith("config= sm_limit=9 batch_invariant=1")
        with override(sm_limit=2**32 + 1):  # as many as there are, not 1
            torch.mm(a, b)
        assert last_call().startswith("config= sm_limit=2147483647 ")
        with override(batch_invariant=False, sm_limit=0):
            torch.mm(a, b)
        assert last_call().startswith("config= sm_limit=0 batch_invariant=0")


def test_as_a_decorator_and_again():
    a, b, *_ = operands()
    o = override()

    @o
    def twice():
        return torch.mm(torch.mm(a, b), torch.mm(a, b).t())

    twice(), twice()
    assert o.taken == {"mm": 6}
    with o, o:
        torch.mm(a, b)
    assert o.taken == {"mm": 7}
    for wrong in (async_function, generator_function):
        with pytest.raises(TypeError, match="coroutine or generator function"):
            override()(wrong)


async def async_function():
    pass


def generator_function():
    yield


def test_two_threads_leave_out_of_turn():
    a, b, *_ = operands()
    entered, leave = threading.Event(), threading.Event()

    def work():
        with override(sm_limit=5):
            entered.set(), leave.wait(30)

    thread = threading.Thread(target=work)
    with override(sm_limit=3):
        thread.start(), entered.wait(30)
        torch.mm(a, b)
        assert last_call().startswith("config= sm_limit=5")
    torch.mm(a, b)  # the other thread's block is still open
    assert last_call().startswith("config= sm_limit=5")
    leave.set(), thread.join()


BESIDE_A_THREAD = """
import sys, threading, torch
from hopgemm.torch import override

def multiply(x):
    try:
        while not done.is_set():
            torch.mm(x, x), torch.addmm(x, x, x)
    except Exception as error:
        errors.append(error)

done, errors = threading.Event(), []
DTYPES = [torch.bfloat16, torch.bfloat16, torch.float32]
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=multiply, args=(torch.ones(4, 4).to(t),)) for t in DTYPES]
[thread.start() for thread in threads]
for _ in range(500):
    with override(): pass
done.set()
[thread.join() for thread in threads]
assert not errors, errors
"""


def test_leaving_beside_a_thread_that_multiplies():
    """Its calls may be on their way to a kernel that was just taken away: it must still be there."""
    run = subprocess.run([sys.executable, "-c", BESIDE_A_THREAD], capture_output=True, text=True)
    assert run.returncode == 0, (run.returncode, run.stderr)


def test_a_wrong_environment_installs_nothing():
    code = (
        "import torch\nfrom hopgemm._torch_aten import kernels, override\n"
        "try: override().__enter__()\nexcept ValueError as e: print(e, kernels()._installed)"
    )
    environment = os.environ | {"HOPGEMM_SM_LIMIT": "x"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "HOPGEMM_SM_LIMIT='x'" in run.stdout and run.stdout.endswith(" {}\n"), run.stdout + run.stderr


def test_deterministic_algorithms_are_satisfied():
    a, b, *_ = operands()
    torch.use_deterministic_algorithms(True)
    try:
        with override() as o:
            assert torch.equal(torch.mm(a, b), torch.mm(a, b))
    finally:
        torch.use_deterministic_algorithms(False)
    assert o.taken == {"mm": 2}


# ---- beside another overrider ----


class Other:
    """Somebody else's kernel over whatever stands there: counts, and falls through."""

    def __init__(self, operator):
        kernel = get_kernel(f"aten::{operator}", "CPU")
        self.calls, self.library = 0, Library("aten", "IMPL")

        def run(keyset, *args, **options):
            self.calls += 1
            return kernel.call_boxed(keyset, *args, **options)

        self.library.impl(operator, run, "CPU", with_keyset=True, allow_override=True)


@pytest.mark.parametrize("operator", CALLS)
def test_another_overrider_below_gets_what_is_left(operator):
    half, full = operands(), operands(torch.float32)
    call, want = CALLS[operator]
    other = Other(operator)
    with override() as o:
        assert torch.equal(call(*full), want(*full).float()) and other.calls == 1
        assert torch.equal(call(*half), want(*half).bfloat16()) and other.calls == 1
    call(*half)
    assert other.calls == 2 and o.taken == {operator: 1} and o.left == {"dtype": 1}
    other.library._destroy()


@pytest.mark.parametrize("operator", CALLS)
def test_another_overrider_above_may_outlive_ours(operator):
    half = operands()
    call, want = CALLS[operator]
    with override() as o:
        other = Other(operator)
        call(*half)
        assert other.calls == 1 and o.taken == {operator: 1}
    assert torch.equal(call(*half), want(*half).bfloat16())  # it falls through to ours, which is switched off
    assert other.calls == 2 and o.taken == {operator: 1} and list(kernels()._installed) == [operator]
    other.library._destroy()
    with override() as o:
        call(*half)
    assert o.taken == {operator: 1}


def test_errors_through_another_overrider_keep_their_words():
    a, b, *_ = operands()
    want = failure(lambda: torch.mm(a, a))
    other = Other("mm")
    with override():
        assert failure(lambda: torch.mm(a, a)) == want
    other.library._destroy()


# ---- torch.compile ----


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


# ---- noise and leaks ----


def test_no_warning_and_no_noise():
    code = (
        "import torch, hopgemm.torch\nx, o = torch.ones(2, 2), hopgemm.torch.override()\n"
        "with o: torch.mm(x, x)\nwith o: torch.addmm(x, x, x)\nassert o.left == {'dtype': 2}"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0 and not run.stderr, run.stderr


def test_nothing_leaks():
    half, full = operands(), operands(torch.float32)
    wrong = lambda: failure(lambda: torch.mm(half[0], half[0]))
    with override(), warnings.catch_warnings():
        for call in (*(lambda c=c, t=t: c(*t) for c, _ in CALLS.values() for t in (half, full)), wrong):
            for _ in range(100):
                call()
            before = resident_kib()
            for _ in range(3000):
                call()
            assert resident_kib() - before < 1000, call  # a tensor a call would be 1 MB and more


def test_sizes_of_nothing():
    with override() as o:
        assert torch.mm(integers(0, 3), integers(3, 2)).shape == (0, 2)
        assert not torch.mm(integers(2, 0), integers(0, 3)).any()
        assert torch.equal(
            torch.addmm(integers(2), integers(3, 0), integers(0, 2), beta=0), torch.zeros(3, 2).bfloat16()
        )
    assert sum(o.taken.values()) + sum(o.left.values()) == 3


def test_refusals():
    for flag in ("yes", 1):
        with pytest.raises(
            TypeError, match="hopgemm.torch.override: batch_invariant is .*; it must be a bool"
        ):
            override(batch_invariant=flag)
    with pytest.raises(TypeError, match="hopgemm.torch.override: sm_limit is a str"):
        override(sm_limit="3")
    with pytest.raises(ValueError, match="hopgemm.torch.override: sm_limit is -1"):
        override(sm_limit=-1)


def test_functional_linear_of_every_rank():
    w, bias = integers(5, 8), integers(5)
    for shape in ((8,), (3, 8), (2, 3, 8)):
        x = integers(*shape)
        with override() as o:
            y = F.linear(x, w, bias)
        assert torch.equal(y, F.linear(x.double(), w.double(), bias.double()).bfloat16())
        assert o.taken == {"addmm": 1} and not o.left, shape
