"""hopgemm.torch.override() on a Hopper GPU, and without CUDA. (The `torch_aten_*checks.py` have the rest.)"""

import functools
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch.library import get_kernel  # noqa: E402
from torch_cases import DTYPES, assert_same, capture, reference  # noqa: E402

from hopgemm import plan  # noqa: E402
from hopgemm._torch_aten import kernels  # noqa: E402
from hopgemm.torch import override  # noqa: E402

integers = functools.partial(torch_cases.integers, device="cuda")


def test_without_cuda_it_does_nothing():
    if torch.version.cuda:
        pytest.skip("this torch has CUDA")
    a = torch.ones(2, 2).bfloat16()
    with override() as o:
        assert torch.equal(torch.mm(a, a), 2 * a)
    assert o.taken == o.left == {} and not kernels()._installed


def test_cpu_tensors_are_not_its_business():
    a = torch.ones(2, 2).bfloat16()
    with override() as o:
        assert torch.equal(torch.mm(a, a), 2 * a)
    assert o.taken == o.left == {}


@pytest.fixture
def restored():
    torch.manual_seed(0)
    names = [f"aten::{operator}" for operator in kernels().operators]
    before = [repr(get_kernel(name, "CUDA")) for name in names]
    yield
    torch.cuda.synchronize()
    assert [repr(get_kernel(name, "CUDA")) for name in names] == before and not kernels()._installed


def launches(call):
    """The kernels of hopgemm, and those of the vendor's library, that a call launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    names = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    ours = [name for name in names if "hopgemm::instances::" in name]
    vendors = [name for name in names if any(word in name for word in ("nvjet", "cutlass", "cublas"))]
    return len(ours), vendors


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_operator(restored, dtype):
    a, b, c = integers(96, 72, dtype=dtype), integers(72, 136, dtype=dtype), integers(96, 136, dtype=dtype)
    x, y = integers(3, 96, 72, dtype=dtype), integers(3, 72, 136, dtype=dtype)
    z = integers(3, 96, 136, dtype=dtype)
    scaled = {"beta": 2.0, "alpha": 3.0}
    cases = [
        (lambda: torch.mm(a, b), reference(a, b)),
        (lambda: torch.mm(a, b, out=torch.empty_like(c)), reference(a, b)),
        (lambda: torch.bmm(x, y), reference(x, y)),
        (lambda: torch.bmm(x, y, out=torch.empty_like(z)), reference(x, y)),
        (lambda: torch.addmm(c, a, b, **scaled), reference(a, b, c=c, **scaled)),
        (lambda: torch.addmm(c[0], a, b, out=torch.empty_like(c)), reference(a, b, bias=c[0])),
        (lambda: torch.baddbmm(z, x, y, **scaled), reference(x, y, c=z, **scaled)),
        (lambda: torch.baddbmm(z, x, y, out=torch.empty_like(z)), reference(x, y, c=z, beta=1.0)),
    ]
    with override() as o:
        for call, want in cases:
            assert_same(call(), want)
    assert o.taken == dict.fromkeys(kernels().operators, 1) and not o.left, o


@pytest.mark.gpu
def test_what_is_left_to_cublas(restored):
    a, b = integers(96, 72), integers(72, 136)
    misaligned = a.flatten()[1:-71].view(95, 72)
    want, want_32 = reference(misaligned, b), reference(a, b, out_dtype=torch.float32)
    with override() as o:
        assert_same(torch.mm(misaligned, b), want)
        assert_same(torch.addmm(want[:1], misaligned, b, beta=0), want)
        assert_same(torch.mm(a.float(), b.float()), want_32)
        assert not torch.mm(a[:, :0], b[:0]).any()
    assert o.left == {"layout": 2, "dtype": 1, "empty": 1} and not o.taken, o


@pytest.mark.gpu
def test_what_cublas_does_faster_is_left_to_it(restored):
    x, y = integers(1000, 1000), integers(1000, 1000)
    if "cuBLAS was measured faster" not in plan(x.T, y.T).reason:
        pytest.skip("not an H200 SXM, or the list has another product now")
    want = reference(x.T, y.T)
    with override() as o:
        assert_same(torch.mm(x.T, y.T), want)
        torch.mm(x, y), torch.addmm(x, x.T, y.T)
    assert o.left == {"slower": 1} and o.taken == {"mm": 1, "addmm": 1}, o
    with override(batch_invariant=True) as o:
        assert_same(torch.mm(x.T, y.T), want)
    assert o.taken == {"mm": 1}, o


@pytest.mark.gpu
def test_forward_and_backward_launches(restored):
    """Autograd's own thread runs the backward; every product of it must be the kernel's."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64, bias=False)
    )
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(integers(*p.shape, low=-1, high=1))
    model.cuda()
    x = integers(32, 64, dtype=torch.float32, low=-1, high=1)

    def step():
        model.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = model(x)
        y.backward(torch.ones_like(y))  # the gradient of y.sum() is one number expanded: no layout for TMA

    step()
    want = [p.grad.clone() for p in model.parameters()]
    with override() as o:
        step()
        ours, theirs = launches(step)
    assert o.taken == {"addmm": 2, "mm": 8} and not o.left and ours == 5 and not theirs, (o, ours, theirs)
    for p, grad in zip(model.parameters(), want, strict=True):
        assert torch.equal(p.grad, grad)
    ours, theirs = launches(step)
    assert ours == 0 and theirs


@pytest.mark.gpu
def test_compiled_and_captured(restored):
    pytest.importorskip("triton")
    w, bias = integers(64, 128), integers(128)
    compiled = torch.compile(lambda x: torch.addmm(bias, x, w).neg() @ w.mT, fullgraph=True)
    x = integers(32, 64)
    want = compiled(x)
    with override() as o:
        assert torch.equal(compiled(x), want)
        assert sum(o.taken.values()) == 2 and not o.left, o
        torch.mm(x, w)
        graph = torch.cuda.CUDAGraph()
        with capture(graph):
            d = torch.mm(x, w)
    d.fill_(float("nan"))
    graph.replay()  # outside: the graph holds the kernel
    assert_same(d, reference(x, w))


@pytest.mark.gpu
def test_side_stream(restored):
    x, w = integers(64, 72), integers(72, 40)
    stream = torch.cuda.Stream()
    source = torch.zeros_like(x)
    torch.cuda.synchronize()
    with override() as o, torch.cuda.stream(stream):
        torch.cuda._sleep(30_000_000)
        source.copy_(x)
        d = torch.addmm(w[0], source, w)
    stream.synchronize()
    assert o.taken == {"addmm": 1}
    assert_same(d, reference(x, w, bias=w[0]))


@pytest.mark.gpu
def test_batch_invariant_takes_everything_that_runs(restored):
    """Odd layouts too; and a row's bits are its own, whatever stands beside it."""
    x, w = torch.randn(300, 515, device="cuda").bfloat16(), torch.randn(515, 264, device="cuda").bfloat16()
    bias = torch.randn(264, device="cuda").bfloat16()
    with override(batch_invariant=True) as o:
        whole = torch.addmm(bias, x, w)
        for rows in (slice(0, 1), slice(7, 72), slice(150, 300)):
            assert torch.equal(torch.addmm(bias, x[rows], w), whole[rows])
        assert torch.equal(torch.bmm(x.expand(2, 300, 515), w.expand(2, 515, 264))[1], torch.mm(x, w))
        assert not torch.mm(x[:, :0], w[:0]).any()
    assert sum(o.taken.values()) == 7 and not o.left, o


@pytest.mark.gpu
def test_deterministic_algorithms():
    """torch refuses cuBLAS without CUBLAS_WORKSPACE_CONFIG then; a call that is taken needs none."""
    code = """
import torch, hopgemm.torch
torch.use_deterministic_algorithms(True)
a = torch.randn(256, 256, device="cuda").bfloat16()
with hopgemm.torch.override() as o:
    first = torch.mm(a, a)
    assert all(torch.equal(torch.mm(a, a), first) for _ in range(20))
assert o.taken == {"mm": 21}, o
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


@pytest.mark.gpu
def test_errors_are_torchs_own(restored):
    """Word for word; from mm and bmm as a RuntimeError: torch's C interface does not name its subclasses."""
    a, b = integers(8, 16), integers(16, 8)
    cases = [
        lambda: torch.mm(a, a), lambda: torch.mm(a, b.half()), lambda: torch.mm(a, b.cpu()),
        lambda: torch.addmm(integers(7), a, b), lambda: torch.bmm(a, b), lambda: torch.mm(a.int(), b.int()),
    ]  # fmt: skip

    def failure(call):
        with pytest.raises(RuntimeError) as info:
            call()
        return str(info.value).splitlines()[0]

    want = [failure(call) for call in cases]
    with override():
        assert [failure(call) for call in cases] == want
        assert_same(torch.mm(a, b), reference(a, b))


@pytest.mark.gpu
def test_no_memory_for_the_result(restored):
    """In torch's words; from mm and bmm without torch's type, as override() documents."""
    a, b = integers(1, 1).expand(2**21, 1), integers(1, 1).expand(1, 2**21)
    for call in (
        lambda: torch.mm(a, b),
        lambda: torch.bmm(a[None], b[None]),
        lambda: torch.addmm(a[:1], a, b),
        lambda: torch.baddbmm(a[:1], a[None], b[None]),
    ):
        with pytest.raises(torch.OutOfMemoryError) as torchs:
            call()
        with override(), pytest.raises(RuntimeError) as ours:
            call()
        assert str(ours.value)[:60] == str(torchs.value)[:60]


@pytest.mark.gpu
def test_another_gpu(restored):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = integers(64, 72).to("cuda:1"), integers(72, 40).to("cuda:1")
    with override() as o:
        assert_same(torch.addmm(b[0], a, b), reference(a, b, bias=b[0]))
    assert o.taken == {"addmm": 1} and torch.cuda.current_device() == 0
