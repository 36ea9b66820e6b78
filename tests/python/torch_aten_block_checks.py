"""The blocks of hopgemm.torch.override(): settings, nesting, threads, other overriders; gone without a trace.

Over tests/cpp/naive_gemm.cc, which puts it at the CPU key; `test_torch_cpp.py` runs it in its own process.
"""

import os
import subprocess
import sys
import threading
import warnings

import pytest
import torch
import torch_aten_cases
from torch.library import Library, get_kernel
from torch_aten_cases import CALLS, failure, operands
from torch_cpp_checks import last_call, resident_kib

import hopgemm
from hopgemm._torch_aten import kernels
from hopgemm.torch import override

restored = torch_aten_cases.restored


def test_refusals():
    for flag in ("yes", 1):
        with pytest.raises(
            TypeError, match="hopgemm.torch.override: batch_invariant is .*; it must be a bool"
        ):
            override(batch_invariant=flag)
    with pytest.raises(TypeError, match="hopgemm.torch.override: sm_limit is '3' .str."):
        override(sm_limit="3")
    with pytest.raises(ValueError, match="hopgemm.torch.override: sm_limit is -1"):
        override(sm_limit=-1)


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
for _ in range(20):
    with override(): pass
done.set()
[thread.join() for thread in threads]
assert not errors, errors
"""


def test_leaving_beside_a_thread_that_multiplies():
    """Its calls may be on their way to a kernel that was just taken away: it must still be there.

    20 blocks find one that is not, always. HAZARD: no more: a call reads a kernel while torch writes it,
    without a lock, and some block in 50,000 ends in a segmentation fault of torch's own.
    """
    run = subprocess.run([sys.executable, "-c", BESIDE_A_THREAD], capture_output=True, text=True)
    assert run.returncode == 0, (run.returncode, run.stderr)


def test_a_wrong_environment_installs_nothing():
    code = (
        "import torch\nfrom hopgemm._torch_aten import kernels, override\n"
        "try: override().__enter__()\nexcept ValueError as e: print(e, kernels()._installed)"
    )
    environment = os.environ | {"HOPGEMM_SM_LIMIT": "x"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "HOPGEMM_SM_LIMIT is 'x'" in run.stdout and run.stdout.endswith(" {}\n"), run.stdout + run.stderr


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
