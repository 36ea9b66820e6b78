"""What the torch tests share: exact data, the reference, comparison bit for bit."""

import contextlib
import gc
import itertools
import json

import pytest
import torch

import hopgemm.torch
from hopgemm import _torch_linear_eager

DTYPES = [torch.bfloat16, torch.float16]
MAJORS = ["kk", "kn", "mk", "mn"]
SHAPES = [  # of a and b, as torch.matmul takes them
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

GPU_BATCHES = [
    ((3, 17, 24), (3, 24, 40)),
    ((3, 17, 24), (24, 40)),
    ((17, 24), (3, 24, 40)),
    ((2, 1, 16, 24), (3, 24, 40)),
    ((2, 1, 2, 8, 16), (1, 3, 2, 16, 8)),
    ((2, 1, 1, 2, 1, 2, 8, 16), (3, 1, 2, 1, 16, 8)),
    ((24,), (24, 40)),
    ((17, 24), (24,)),
    ((24,), (24,)),
    ((24,), (3, 24, 40)),
    ((3, 17, 24), (24,)),
]


def layouts():
    return itertools.product(DTYPES, MAJORS)


@pytest.fixture(autouse=True)
def settled():
    """For GPU tests: a fault of one is reported there, not in the next."""
    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()


@pytest.fixture(autouse=True)
def fresh():
    """Seeded, and without what Dynamo has compiled."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def products(monkeypatch):
    """The shapes of the operands of each product, of matmul or of linear's short cut: what went our way."""
    calls = []
    matmul, raw_linear = hopgemm.torch.matmul, _torch_linear_eager.raw_linear

    def record(a, b, **options):
        calls.append((tuple(a.shape), tuple(b.shape)))
        return matmul(a, b, **options)

    def record_short_cut(x, weight, bias):
        calls.append((tuple(x.shape), tuple(weight.mT.shape)))
        try:
            return raw_linear(x, weight, bias)
        except (TypeError, ValueError, RuntimeError):  # then the call goes the long way
            calls.pop()
            raise

    monkeypatch.setattr(hopgemm.torch, "matmul", record)
    monkeypatch.setattr(_torch_linear_eager, "raw_linear", record_short_cut)
    return calls


@contextlib.contextmanager
def capture(graph, capture_error_mode="thread_local", **options):
    """torch.cuda.graph, safe from what other tests left: XLA's threads calling CUDA, or a program of its own
    being unloaded, would end a capture.
    """
    gc.collect()
    with torch.cuda.graph(graph, capture_error_mode=capture_error_mode, **options):
        yield


def integers(*shape, dtype=torch.bfloat16, device="cpu", grad=False, low=-3, high=3):
    """Small integers: every sum below is exact in fp32, so results are compared bit for bit."""
    return torch.randint(low, high + 1, shape, device=device).to(dtype).requires_grad_(grad)


def operand(rows, cols, dtype, row_major, padded, low=-2, high=2):
    """A rows x cols view of integers inside a NaN-filled buffer on the GPU.

    `padded`: rows (or columns) of a multiple of 8 elements.
    """
    inner, outer = (cols, rows) if row_major else (rows, cols)
    pitch = (inner + 7) // 8 * 8 + 8 if padded else inner
    buffer = torch.full((outer * pitch + 64,), float("nan"), dtype=dtype, device="cuda")
    strides = (pitch, 1) if row_major else (1, pitch)
    view = buffer.as_strided((rows, cols), strides, 8 if padded else 0)
    view.copy_(torch.randint(low, high + 1, (rows, cols), device="cuda", dtype=torch.int32))
    return view


def reference(a, b, c=None, bias=None, alpha=1.0, beta=0.0, out_dtype=None):
    """What matmul computes, in float64, rounded once."""
    d = alpha * torch.matmul(a.double(), b.double())
    d = d if c is None or beta == 0 else d + beta * c.double()
    d = d if bias is None else d + bias.double()
    return d.float().to(out_dtype or a.dtype)


def assert_same(got, want, what=""):
    """The same bits, dtype, shape and device. `what`: of which, for the message."""
    assert got.dtype == want.dtype and got.shape == want.shape and got.device == want.device
    if not torch.equal(got, want):
        wrong = (got != want).nonzero()
        text = f"{what} {len(wrong)} of {want.numel()} wrong, the first at {wrong[0].tolist()}"
        raise AssertionError(text.lstrip())


def canary(*shape, dtype=torch.bfloat16):
    return torch.full(shape, -77.0).to(dtype)


def raises(kind, *texts):
    """pytest.raises, for a message with these pieces in this order."""
    return pytest.raises(kind, match="(?s)" + ".*".join(texts))


def gpu_events(profile, folder):
    """What a torch.profiler.profile saw, as Chrome has it, and our kernels among that."""
    path = folder / "trace.json"
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    return events, [e for e in events if e.get("cat") == "kernel" and "hopgemm" in e["name"]]
