"""Where PyTorch asks for tuning, and where it must not; on a Hopper GPU also what comes of it."""

import json
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch_cases import capture, gpu_events  # noqa: E402

import hopgemm  # noqa: E402
from hopgemm import _cache, _context, _core, _plan, _tune, _tune_race, _tune_torch  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPGEMM_CACHE", str(tmp_path / "tuned.json"))
    monkeypatch.setattr(_cache, "_in_force", {})
    monkeypatch.setattr(_tune, "_tried", set())
    yield
    _core.set_tuned([])


def ones(*shape, device="cpu", **options):
    return torch.ones(*shape, dtype=torch.bfloat16, device=device, **options)


@pytest.fixture
def asked(monkeypatch):
    """The calls of `before_call`, which does nothing."""
    calls = []
    monkeypatch.setattr(_tune_torch, "before_call", lambda *arguments: calls.append(arguments))
    return calls


def test_only_inside_the_block(asked):
    a = ones(16, 16)
    hopgemm.matmul(a, a)
    with hopgemm.autotune():
        assert hopgemm.matmul(a, a)[0, 0] == 16
        with hopgemm.autotune(False):
            hopgemm.matmul(a, a)
    hopgemm.matmul(a, a)
    assert len(asked) == 1


def test_the_environment_asks_too(asked, monkeypatch):
    monkeypatch.setenv("HOPGEMM_AUTOTUNE", "1")
    monkeypatch.setattr(_context, "_read", [])  # it is read once a process
    hopgemm.matmul(ones(16, 16), ones(16, 16))
    assert len(asked) == 1


def test_what_is_asked_for_by_name_is_not_tuned(asked):
    a = ones(16, 16)
    with hopgemm.autotune():
        hopgemm.matmul(a, a, config="anything")  # the CPU takes any name
    assert asked == []


def test_options_and_the_result_reach_the_tuner(asked):
    a, out = ones(16, 16), torch.zeros(16, 16, dtype=torch.float32)
    with hopgemm.autotune(), hopgemm.sm_limit(7):
        hopgemm.matmul(a, a, out=out, batch_invariant=True)
    ((_, _, result, _, *options),) = asked
    assert result is out and options == [7, True]


def test_a_compiled_function_is_not_tuned(asked):
    compiled = torch.compile(lambda a: hopgemm.matmul(a, a), backend="eager", fullgraph=True)
    with hopgemm.autotune():
        assert compiled(ones(16, 16))[0, 0] == 16
    assert asked == []


@pytest.fixture
def searched(monkeypatch):
    """What `before_call` hands to the search, on operands that only say that they are on a GPU."""
    products = []
    monkeypatch.setattr(
        _tune_torch._tune, "at_first_use", lambda product, where, bench: products.append((product, where))
    )
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return products


def test_cpu_and_fake_tensors_are_left_alone(searched):
    from torch._subclasses.fake_tensor import FakeTensorMode

    a = ones(16, 16)
    _tune_torch.before_call(a, a, None, None, 0, False)
    with FakeTensorMode():
        fake = ones(16, 16, device="cuda")
        _tune_torch.before_call(fake, fake, None, None, 0, False)
    _tune_torch.before_call(ones(16, 16, device="meta"), ones(16, 16, device="meta"), None, None, 0, False)
    assert searched == []


@pytest.fixture
def cuda_operand(monkeypatch):
    """A fake tensor that passes for one on a GPU."""
    import contextlib

    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    monkeypatch.setattr(_tune_torch, "PLAIN", {FakeTensor})
    monkeypatch.setattr(_tune_torch, "is_intercepted", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(_tune_torch, "operands", lambda *arguments: ([], {}))
    with FakeTensorMode():
        return ones(16, 16, device="cuda")


def test_leading_dimensions_are_rows_where_strides_allow_it():
    """As the products of a layer's gradients have them."""
    for shape, want in [((2, 3, 16), (6, 16)), ((3, 16), (3, 16)), ((16,), (16,))]:
        assert _tune_torch._as_rows(ones(*shape)).shape == want
    turned = ones(2, 3, 16).transpose(0, 1)
    assert _tune_torch._as_rows(turned) is turned


def test_tune_inside_a_capture_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="being captured; tune before"):
        hopgemm.tune(["64x64x64"], framework="torch")


@pytest.mark.parametrize(("processes", "count"), [(None, 2), (1, 2), (2, 0)])
def test_several_processes_do_not_tune(searched, cuda_operand, monkeypatch, processes, count):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: processes is not None)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: processes)
    _tune_torch._warn_distributed.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            _tune_torch.before_call(cuda_operand, cuda_operand, None, None, 0, False)
    assert len(searched) == count
    assert ["several processes" in str(x.message) for x in seen] == [True] * (processes == 2)


# ---- on the GPU ----


gpu = pytest.mark.gpu


@gpu
def test_tune_finds_an_exact_config_and_plan_tells():
    for majors in ("kk", "kn", "mk", "mn"):
        (found,) = hopgemm.tune([(304, 520, 200)], majors=majors, dtype="fp16", framework="torch")
        assert 0 < found.microseconds <= 1.05 * found.default_microseconds
        plan = hopgemm.plan(m=304, n=520, k=200, majors=majors, dtype="fp16", device=0)
        assert (plan.config, plan.reason) == (found.config, "tuned on this card")
    assert len(json.loads(_cache.location().read_text())["entries"]) == 4


@gpu
@pytest.mark.parametrize(
    "options",
    [
        {"out_dtype": "float32"},
        {"batch": 3},
        {"sm_limit": 8},
        {"sm_limit": 1},
        {"batch_invariant": True},
    ],
)
def test_tune_with_options(options):
    (found,) = hopgemm.tune([(257, 136, 72)], framework="torch", majors="mn", **options)
    assert _cache.problem_of(found) is None


@gpu
@pytest.mark.parametrize("shape", [(256, 512), (2, 128, 512)])
def test_first_use_tunes_the_product_and_its_gradients(shape):
    a = ones(*shape, device="cuda", requires_grad=True)
    w = ones(384, 512, device="cuda", requires_grad=True)
    with hopgemm.autotune():
        d = hopgemm.matmul(a, w.T)
    d.sum().backward()
    assert (d == 512).all() and (a.grad == 384).all() and (w.grad == 256).all()
    assert sorted(x.key.majors for x in _cache.in_force()) == ["kk", "kn", "mn"]
    assert hopgemm.plan(a, w.T).reason == "tuned on this card"
    rows, grad = (x.detach().flatten(0, -2) for x in (a, d))
    assert hopgemm.plan(rows.T, grad).reason == "tuned on this card"


@gpu
def test_an_accumulating_call_is_tuned_on_scratch():
    a, out = ones(64, 64, device="cuda"), torch.full((64, 64), 5.0, device="cuda")
    with hopgemm.autotune():
        hopgemm.matmul(a, a, c=out, beta=1.0, out=out)
    assert (out == 69).all()  # added once
    assert len(_cache.in_force()) == 1


@gpu
def test_nothing_is_tuned_inside_a_capture():
    a, out = ones(64, 64, device="cuda"), ones(64, 64, device="cuda")
    hopgemm.matmul(a, a, out=out)
    graph = torch.cuda.CUDAGraph()
    with hopgemm.autotune(), capture(graph):
        hopgemm.matmul(a, a, out=out)
    out.zero_()
    graph.replay()
    assert (out == 64).all() and _cache.in_force() == []


@gpu
def test_nothing_is_tuned_under_transforms_and_autocast():
    a = ones(64, 64, device="cuda")
    with hopgemm.autotune():
        torch.func.vmap(hopgemm.matmul)(ones(2, 64, 64, device="cuda"), ones(2, 64, 64, device="cuda"))
        torch.func.grad(lambda x: hopgemm.matmul(x, a).float().sum())(a)
        with torch.autocast("cuda", torch.float16):
            hopgemm.matmul(a, a)
    assert _cache.in_force() == []


@gpu
def test_a_tuned_config_reaches_eager_and_compiled_calls(tmp_path):
    """A config with three CTAs is told from any other by the grid that the profiler saw."""
    a = ones(512, 512, device="cuda")
    key = _cache.Key(*_core.tuning_key(*_plan.operands(a, a.T)[0], device=0))
    gpu_name = _core.device_info(0)["name"]
    config = (
        next(x for x in _tune_race.candidates(key, gpu_name) if "_c1x1_" in x).partition("+")[0] + "+ctas3"
    )
    version = _core.driver_version(), _cache.version()
    _cache.adopt([_cache.Tuned(gpu_name, *version, key, config, 1.0, config, 1.0)])
    assert hopgemm.plan(a, a.T).config == config
    compiled = torch.compile(lambda x: hopgemm.matmul(x, x.T), backend="eager")
    for call in (lambda: hopgemm.matmul(a, a.T), lambda: compiled(a)):
        call()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            assert (call() == 512).all()
            torch.cuda.synchronize()
        grids = [e["args"]["grid"] for e in gpu_events(profile, tmp_path)[1]]
        assert grids == [[3, 1, 1]]
