"""The contenders of both frameworks without a GPU: what they multiply, and how they check it."""

import subprocess
import sys

import pytest


@pytest.fixture
def backends(monkeypatch):
    """Records the BLAS backends that are asked for; a CPU build of torch has none."""
    torch = pytest.importorskip("torch")
    asked = []
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", asked.append)
    return asked


@pytest.fixture
def torch_case(backends):
    """Three sets of column-major and row-major operands on the CPU."""
    torch = pytest.importorskip("torch")
    from hopgemm._bench_torch import TorchCase

    sets = [
        (torch.randn(96, 130).to(torch.bfloat16).T, torch.randn(96, 140).to(torch.bfloat16)) for _ in range(3)
    ]
    return torch, TorchCase([(pair,) for pair in sets], "bf16", "mn", False), sets


def test_torch_right_products_pass(torch_case):
    _, case, _ = torch_case
    for contender in (*case.baselines(), case.hopgemm("")):
        check = contender.check()
        assert check.correct
        assert 0 < check.worst_error <= 1


def test_torch_names(torch_case, backends):
    _, case, _ = torch_case
    baselines = case.baselines()
    assert [(c.name, c.config) for c in baselines] == [("cublas", "cublas"), ("cublas", "cublaslt")]
    backends.clear()
    for contender in reversed(baselines):
        contender.check()
    assert backends == ["cublaslt", "cublas"]
    ours = case.hopgemm("")
    assert ours.name == "hopgemm"
    assert case.hopgemm(ours.config).config == ours.config


@pytest.mark.parametrize("spot", [(0, 0), (129, 139), (129, 0)])
@pytest.mark.parametrize("value", [1e3, float("nan"), float("inf")])
def test_torch_wrong_products_fail(torch_case, spot, value):
    """The corners are looked at, and a NaN is no pass."""
    torch, case, _ = torch_case

    def wrong(a, b):
        product = torch.mm(a, b)
        product[spot] = value
        return product

    assert not case.contender("wrong", "", wrong).check().correct


def test_torch_a_result_rounded_twice_as_coarsely_fails(torch_case):
    torch, case, _ = torch_case

    def coarse(a, b):
        exact = a.float() @ b.float()
        return (exact * 2**-6).to(torch.float8_e4m3fn).float() * 2**6

    assert not case.contender("coarse", "", coarse).check().correct


class HostEvent:
    """Stands for torch.cuda.Event: every record is one second after the last."""

    now = 0.0

    def record(self):
        HostEvent.now += 1.0
        self.time = HostEvent.now

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return (other.time - self.time) * 1e3


class ListGraph:
    """Stands for a CUDA graph of the products that were launched while it was captured."""

    def __init__(self, log):
        self.log, self.captured = log, []

    def replay(self):
        self.log.extend(self.captured)


def test_torch_eager_launches_rotate(torch_case, monkeypatch):
    torch, case, sets = torch_case
    monkeypatch.setattr("hopgemm._bench_torch._timing_event", HostEvent)
    seen = []
    contender = case.contender("x", "", lambda a, b: seen.append((a, b)))
    assert contender.run(7) == (7, 1.0)
    assert [next(i for i, s in enumerate(sets) if s[0] is a and s[1] is b) for a, b in seen] == [
        0,
        1,
        2,
        0,
        1,
        2,
        0,
    ]


def test_torch_graphs_hold_whole_rotations(torch_case, monkeypatch):
    import contextlib

    from hopgemm._bench_torch import TorchCase

    torch, _, sets = torch_case
    seen = []
    graphs = []

    def new_graph():
        graphs.append(ListGraph(seen))
        return graphs[-1]

    @contextlib.contextmanager
    def capture(graph):
        before = len(seen)
        yield
        graph.captured = seen[before:]
        del seen[before:]

    monkeypatch.setattr("hopgemm._bench_torch._timing_event", HostEvent)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", new_graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    steps = [(pair,) for pair in sets]
    contender = TorchCase(steps, "bf16", "mn", True).contender("x", "", lambda a, b: seen.append(a))
    assert contender.timing == "CUDA graph"
    assert len(seen) == 1  # once before the capture
    seen.clear()
    assert contender.run(19) == (36, 1.0)  # two replays of a graph of 18 launches, not fewer than 16
    assert [next(i for i, s in enumerate(sets) if s[0] is a) for a in seen] == [0, 1, 2] * 12


def test_torch_batch_invariant(torch_case, monkeypatch):
    """It asks for the option, and the default asks for none."""
    _, case, _ = torch_case
    asked = []
    monkeypatch.setattr(
        "hopgemm._bench_torch.hopgemm_torch.matmul", lambda a, b, **options: asked.append(options)
    )
    for invariant in (False, True):
        contender = case.hopgemm("", batch_invariant=invariant)
        contender._launch(case.sets[0])
        assert contender.name == ("batch_invariant" if invariant else "hopgemm")
    assert [options["batch_invariant"] for options in asked] == [None, True]


@pytest.mark.parametrize("layout", ["training-nk", "training-kn"])
def test_torch_training_steps(backends, layout):
    """The three products that autograd computes, of the shapes and in the layouts that are said."""
    torch = pytest.importorskip("torch")
    from hopgemm._bench_case import products
    from hopgemm._bench_torch import TorchCase, training_step

    m, n, k = 24, 40, 16
    w = torch.randn(n, k).T if layout == "training-nk" else torch.randn(k, n)
    x, dy = torch.randn(m, k), torch.randn(m, n)
    leaf, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = leaf @ weight
    y.backward(dy)
    step = training_step(x, w, dy)
    found = [a @ b for a, b in step]
    dw = weight.grad.T if layout == "training-nk" else weight.grad
    for product, wanted in zip(found, (y, leaf.grad, dw), strict=True):
        torch.testing.assert_close(product, wanted.detach())
    for (a, b), (shape, majors) in zip(step, products((m, n, k), layout), strict=True):
        assert (*a.shape, b.shape[1]) == (shape[0], shape[2], shape[1])
        assert majors == ("k" if a.stride(1) == 1 else "m") + ("n" if b.stride(1) == 1 else "k")

    case = TorchCase([tuple((a.bfloat16(), b.bfloat16()) for a, b in step)], "bf16", layout, False)
    assert len(case.hopgemm("").config.split()) == 3
    assert case.hopgemm("").check().correct
    calls = []

    def wrong_wgrad(a, b):
        calls.append((a, b))
        return torch.mm(a, b) + (len(calls) == 3)

    assert not case.contender("x", "", wrong_wgrad).check().correct


def test_jax_contender():
    """In a process of its own: the module sets XLA's flags."""
    pytest.importorskip("jax")
    code = """
import jax, jax.numpy as jnp
from hopgemm._bench_jax import JaxCase, JaxContender, oriented
keys = jax.random.split(jax.random.key(0), 4)
for layout in ("kk", "kn", "mk", "mn"):
    a = (136, 96) if layout[0] == "k" else (96, 136)
    b = (96, 144) if layout[1] == "n" else (144, 96)
    arrays = [jax.random.normal(key, (a, b)[i % 2], jnp.bfloat16) for i, key in enumerate(keys)]
    sets = [(arrays[0], arrays[1]), (arrays[2], arrays[3])]
    (baseline,) = JaxCase(sets, "bf16", layout).baselines()
    assert baseline.check().correct
    launches, seconds = baseline.run(3)
    assert launches == 4 and seconds > 0  # whole rotations
    right = lambda a, b: jnp.matmul(*oriented((a, b), layout))
    wrong = lambda a, b: right(a, b).at[-1, -1].add(1000)
    assert not JaxContender("wrong", "", wrong, sets, "bf16", layout).check().correct
    missing = lambda a, b: right(a, b).at[0, 0].set(jnp.nan)
    assert not JaxContender("nan", "", missing, sets, "bf16", layout).check().correct
    from hopgemm import jax as hj
    sums = ((int(layout[0] == "k"),), (int(layout[1] == "k"),))
    ours = jax.jit(lambda a, b: hj.dot_general(a, b, (sums, ((), ()))))
    text = ours.trace(*sets[0]).lower(lowering_platforms=("cuda",)).as_text()
    assert "hopgemm.matmul" in text and "transpose" not in text and f"bf16_{layout}_" in text
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
