"""The self-test finds each kind of fault, planted in a product that is right otherwise."""

import itertools
import json
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from hopgemm import _core, _selftest, _selftest_torch  # noqa: E402
from hopgemm._cli import main  # noqa: E402


@pytest.fixture
def product(monkeypatch):
    """Replaces matmul by the plain one with a fault: `fault(a, b, out)` runs after it."""
    plain = _selftest_torch.hopgemm_torch.matmul

    def plant(fault):
        def matmul(a, b, *, out, **options):
            plain(a, b, out=out, **options)
            fault(a, b, out)

        monkeypatch.setattr(_selftest_torch.hopgemm_torch, "matmul", matmul)

    return plant


class Cpu(_selftest_torch.Runner):
    """On the CPU, where a kernel's name says nothing, and which has only time for every third small case."""

    seen = 0

    def __init__(self):
        super().__init__("cpu")

    def takes(self, case):
        self.seen += 1
        return self.seen % 3 == 0 and case.m * case.n * case.k < 3_000_000 and not case.config


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Of the self-test: a second passes at each look."""
    monkeypatch.setattr(_selftest, "time", types.SimpleNamespace(monotonic=itertools.count().__next__))
    monkeypatch.setattr(_selftest, "_CHUNK", 16)


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that spin for products this small take 20 times as long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(seconds=0.0):
    return _selftest.run(Cpu(), seconds, seed=0)


def test_the_spread_and_a_soak_pass():
    result = run(seconds=12.0)
    assert result["ok"] and result["wrong"] == []
    assert 16 <= result["spread"] <= 60 and result["soak"] >= 32
    assert "products exact" in _selftest.render(result)


def test_the_spread_has_every_kernel_and_option():
    cases = list(_selftest.spread(_core.configs()))
    assert {case.config for case in cases} == {"", *_core.configs()}
    for name in ("batch", "alpha", "beta", "bias", "sm_limit", "batch_invariant", "padded", "out_dtype"):
        assert len({getattr(case, name) for case in cases}) > 1, name
    assert {(case.dtype, case.majors, case.padded) for case in cases if not case.config} == {
        (dtype, majors, padded)
        for dtype in ("bfloat16", "float16")
        for majors in ("kk", "kn", "mk", "mn")
        for padded in (True, False)
    }


def test_the_soak_is_the_same_for_a_seed():
    first, again, other = (list(itertools.islice(_selftest.soak(seed), 50)) for seed in (1, 1, 2))
    assert first == again != other
    for name in ("padded", "batch_invariant", "bias"):
        assert {getattr(case, name) for case in first} == {True, False}


def change_last(a, b, out):
    out[..., -1, -1] += 1


def write_behind(a, b, out):
    last = out.storage_offset() + sum((n - 1) * s for n, s in zip(out.shape, out.stride()))
    out.as_strided((1,), (1,), last + 1).fill_(0.0)


def read_neighbour(a, b, out):
    """As a kernel that reads one element past a row of A: NaN in the first row of the result."""
    out[..., 0, :] += a.as_strided((1,), (1,), a.storage_offset() - 1).to(out.dtype)


def skip_the_sum(a, b, out):
    out.copy_(a.float() @ b.float())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (change_last, "1 wrong elements, 0 overwritten"),
        (write_behind, "0 wrong elements, 1 overwritten"),
        (read_neighbour, "wrong elements"),
        (skip_the_sum, "wrong elements"),
    ],
)
def test_a_fault_is_found(product, fault, message):
    product(fault)
    result = run()
    assert not result["ok"]
    assert any(message in wrong["problem"] for wrong in result["wrong"])
    assert "WRONG" in _selftest.render(result)
    wrong = result["wrong"][0]
    assert _selftest.Case(**{k: v for k, v in wrong.items() if k != "problem"})  # enough to run it again


def test_the_soak_stops_at_a_fault(product):
    cases = []
    product(lambda a, b, out: cases.append(out) or (len(cases) == 50 and change_last(a, b, out)))
    result = run(seconds=1000.0)
    assert len(result["wrong"]) == 1
    assert result["spread"] < 50 <= result["spread"] + result["soak"] == len(cases) < 70


def test_without_a_gpu_it_says_so(capsys):
    if _core.device_count():
        pytest.skip("this machine has a GPU")
    assert main(["selftest"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: hopgemm selftest: no GPU") and "hopgemm verify" in error


def test_seconds_out_of_range(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["selftest", "--seconds", "-1"])
    assert "--seconds is -1.0" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_on_the_gpu(framework):
    pytest.importorskip(framework)
    command = [
        sys.executable,
        "-m",
        "hopgemm",
        "selftest",
        "--seconds",
        "15",
        "--framework",
        framework,
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["ok"] and result["spread"] >= 56
