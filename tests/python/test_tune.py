"""What tuning decides: which kernel may win, what is kept, when a first use tunes. Times are simulated."""

import threading

import pytest

import hopgemm
from hopgemm import _cache, _core, _tune
from hopgemm._cache import Key, Tuned

GPU = "NVIDIA H200"
KEY = Key("bfloat16", "bfloat16", "kk", 4096, 4096, 4096, 1, 1, 132, False)
PINGPONG = "bf16_kk_128x128x64_c2x1_s6_pingpong"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A file and a table of its own for each test."""
    monkeypatch.setenv("HOPGEMM_CACHE", str(tmp_path / "tuned.json"))
    monkeypatch.setattr(_cache, "_in_force", {})
    monkeypatch.setattr(_cache, "_installed", False)
    monkeypatch.setattr(_tune, "_tried", set())
    yield
    _core.set_tuned([])


class Contender:
    name = "hopgemm"

    def __init__(self, config, seconds):
        self.config, self.seconds = config, seconds

    def run(self, launches):
        return launches, launches * self.seconds


class Bench:
    """Kernels take 100 us, but those that `times` names; a name without schedule covers all of its own."""

    def __init__(self, times, wrong=()):
        self.times, self.wrong, self.timed = times, wrong, []

    def is_exact(self, config):
        return config.partition("+")[0] not in self.wrong

    def contender(self, config):
        self.timed.append(config)
        instance = config.partition("+")[0]
        return Contender(config, self.times.get(config, self.times.get(instance, 100e-6)))


def search(times, wrong=(), key=KEY, quick=False):
    return _tune.search(key, GPU, lambda _: Bench(times, wrong), lambda done, text: None, quick)


def default(key=KEY):
    return _tune.plan_of(key, GPU, tuned=False)["config"]


@pytest.mark.parametrize("quick", [False, True])
def test_the_fastest_wins(quick):
    found = search({PINGPONG: 50e-6}, quick=quick)
    assert found.config.partition("+")[0] == PINGPONG
    assert found.microseconds == pytest.approx(50)
    assert (found.default_config, found.default_microseconds) == (default(), pytest.approx(100))
    assert found.key == KEY and found.gpu == GPU


def test_a_schedule_of_the_fastest_wins():
    found = search({PINGPONG: 50e-6, PINGPONG + "+n8+ctas132": 40e-6})
    assert found.config == PINGPONG + "+n8+ctas132"


def test_the_default_stays_unless_beaten_by_more_than_noise():
    assert search({PINGPONG: 99.5e-6}).config == default()
    assert search({PINGPONG: 98e-6}).config != default()


def test_a_wrong_kernel_never_wins():
    bench = Bench({PINGPONG: 1e-6}, wrong=[PINGPONG])
    with pytest.warns(RuntimeWarning, match=f"{PINGPONG}.*wrong numbers"):
        found = _tune.search(KEY, GPU, lambda _: bench, lambda done, text: None)
    assert PINGPONG not in found.config
    assert not any(PINGPONG in config for config in bench.timed)


def test_a_wrong_default_does_not_stay():
    with pytest.warns(RuntimeWarning, match="wrong numbers"):
        found = search({default(): 1e-6}, wrong=[default().partition("+")[0]])
    assert found.config.partition("+")[0] != default().partition("+")[0]


def test_a_hopeless_kernel_is_looked_at_once():
    slow = [config for config in _tune.candidates(KEY, GPU) if PINGPONG in config][0]
    runs = []

    class Slow(Contender):
        def run(self, launches):
            runs.append(launches)
            return super().run(launches)

    bench = Bench({})
    plain = bench.contender
    bench.contender = lambda config: Slow(config, 0.5) if config == slow else plain(config)
    _tune.search(KEY, GPU, lambda _: bench, lambda done, text: None)
    assert runs == [1, 1]


def test_no_exact_kernel_is_an_error():
    instances = [config.partition("+")[0] for config in _tune.candidates(KEY, GPU)]
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="no kernel multiplies"):
        search({}, wrong=instances)


def test_long_products_are_ranked_by_sustained_runs(monkeypatch):
    asked = []
    monkeypatch.setattr(
        _tune.protocols,
        "sustained",
        lambda contenders, meter: (
            asked.append(contenders) or [type("Result", (), {"seconds": x.seconds}) for x in contenders]
        ),
    )
    key = KEY._replace(m=16384, n=16384, k=16384)
    slow = dict.fromkeys((c.partition("+")[0] for c in _tune.candidates(key, GPU)), 12e-3)
    assert search(slow | {PINGPONG: 11e-3}, key=key).config.startswith(PINGPONG)
    assert len(asked) == 1 and 2 <= len(asked[0]) <= 4
    search(slow, key=key, quick=True)
    assert len(asked) == 1


@pytest.mark.parametrize("changed", [{}, {"sm_count": 1}, {"batch_invariant": True}, {"majors": "mn"}])
def test_every_candidate_and_schedule_can_run(changed):
    """Asked by its name, each gives itself: what was timed is what will run."""
    key = KEY._replace(**changed)
    names = _tune.candidates(key, GPU)
    variants = _tune.schedules(names, key, GPU)
    assert names and variants
    assert len({*names, *variants}) == len(names) + len(variants)
    for name in (*names, *variants):
        found = _tune.plan_of(key, GPU, name)["config"]
        assert found == name
        assert key.majors in name
        assert "+k" not in name or not key.batch_invariant


# ---- hopgemm.tune ----


@pytest.fixture
def framework(monkeypatch):
    """A framework whose GPU is an H200 and whose kernels take what `times` says."""

    class Framework:
        times, opened = {PINGPONG: 50e-6}, []

        @staticmethod
        def current_device():
            return 0

        @classmethod
        def open_bench(cls, key):
            cls.opened.append(key)
            return Bench(cls.times)

    info = {"name": GPU, "sm_count": 132, "compute_capability": (9, 0)}
    monkeypatch.setattr(_tune, "_framework", lambda name: Framework)
    monkeypatch.setattr(_tune._core, "device_info", lambda device: info)
    monkeypatch.setattr(Framework, "opened", [])
    return Framework


def test_tune_keeps_what_it_finds(framework):
    done = []
    found = hopgemm.tune(
        ["4096x4096x4096", (512, 256, 128)],
        majors=("kk", "kn"),
        progress=lambda part, text: done.append((part, text)),
    )
    assert [(x.key.majors, x.key.m) for x in found] == [("kk", 4096), ("kk", 512), ("kn", 4096), ("kn", 512)]
    assert found[0].key == KEY
    plan = hopgemm.plan(m=4096, n=4096, k=4096)
    assert (plan.config, plan.reason) == (found[0].config, "tuned on this card")
    assert _cache.read(_cache.location()) == (found, [])
    parts = [part for part, _ in done]
    assert parts == sorted(parts) and 0 <= parts[0] and parts[-1] < 1
    assert all("4096x4096x4096" in text or "512x256x128" in text for _, text in done)


def test_tuning_again_compares_with_the_untuned_choice(framework):
    untuned = default()
    hopgemm.tune([(4096, 4096, 4096)])
    (again,) = hopgemm.tune([(4096, 4096, 4096)])
    assert again.default_config == untuned


def test_save_false_leaves_the_file_alone(framework):
    hopgemm.tune([(64, 64, 64)], save=False)
    assert not _cache.location().exists()
    assert hopgemm.plan(m=64, n=64, k=64).reason == "tuned on this card"


def test_options_are_part_of_the_key(framework):
    with hopgemm.sm_limit(100), hopgemm.batch_invariant():
        (inside,) = hopgemm.tune([(64, 64, 64)], out_dtype="fp32", batch=3, dtype="fp16")
    want = Key("float16", "float32", "kk", 64, 64, 64, 3, 1, 100, True)
    assert inside.key == want
    (limited,) = hopgemm.tune([(64, 64, 64)], sm_limit=1000)
    assert limited.key.sm_count == 132


def test_what_is_tuned_is_what_such_operands_ask_for(framework):
    """Rows of odd length are packed before the kernel, batches of one are none: the key is what it sees."""
    for majors in ("kk", "kn", "mk", "mn"):
        for shape in ((129, 257, 200), (8192, 50257, 768), (1, 1, 1), (64, 64, 65)):
            hopgemm.tune([shape], majors=majors, save=False)
            m, n, k = shape
            assert hopgemm.plan(m=m, n=n, k=k, majors=majors).reason == "tuned on this card"
    keys = [key for key in framework.opened if key.n == 50257]
    assert {key.majors for key in keys} == {"kk", "mk"}


def test_a_cache_that_cannot_be_written_warns(framework, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOPGEMM_CACHE", str(tmp_path / "file" / "tuned.json"))  # no folder
    with pytest.warns(RuntimeWarning) as seen:
        hopgemm.tune([(64, 64, 64)])
    assert "cannot be written" in str(seen.list[-1].message)
    assert hopgemm.plan(m=64, n=64, k=64).reason == "tuned on this card"


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (["4096x4096"], {}, "must be MxNxK"),
        ([(4096, 4096)], {}, "must be .M, N, K."),
        ([(4096, 4096, 0)], {}, "must be .M, N, K."),
        ([(4096, 4096, True)], {}, "must be .M, N, K."),
        ([(2**31 - 1, 64, 64)], {}, "M is 2147483647"),
        ([(64, 64, 64)], {"dtype": "float32"}, "dtype is 'float32'"),
        ([(64, 64, 64)], {"majors": "nt"}, "majors is 'nt'"),
        ([(64, 64, 64)], {"out_dtype": "float16"}, "out_dtype is float16"),
        ([(64, 64, 64)], {"batch": 0}, "batch is 0"),
        ([(64, 64, 64)], {"framework": "numpy"}, "framework is 'numpy'"),
    ],
)
def test_what_tune_refuses(framework, shapes, options, message):
    with pytest.raises(ValueError, match=message):
        hopgemm.tune(shapes, **options)
    assert framework.opened == []


def test_another_gpu_is_refused(framework, monkeypatch):
    info = {"name": "NVIDIA A100", "sm_count": 108, "compute_capability": (8, 0)}
    monkeypatch.setattr(_tune._core, "device_info", lambda device: info)
    with pytest.raises(RuntimeError, match="NVIDIA A100 is of compute capability 8.0"):
        hopgemm.tune([(64, 64, 64)])


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_without_a_gpu(name):
    pytest.importorskip(name)
    if _core.device_count():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError, match="sees no GPU"):
        hopgemm.tune([(64, 64, 64)], framework=name)


# ---- at first use ----


def first_use(framework, m=256, **options):
    product, where = _cache.arguments(KEY._replace(m=m), GPU)
    _tune.at_first_use(product, {**where, "device": None} | options, framework.open_bench)


def test_a_first_use_tunes_once(framework, monkeypatch):
    first_use(framework)
    first_use(framework)
    first_use(framework, m=512)
    assert [key.m for key in framework.opened] == [256, 512]
    assert [x.key.m for x in _cache.read(_cache.location())[0]] == [256, 512]


def test_an_entry_of_the_cache_is_not_tuned_again(framework):
    hopgemm.tune([(256, 4096, 4096)])
    framework.opened.clear()
    first_use(framework)
    assert framework.opened == []


def test_what_cannot_be_tuned_warns_once_and_runs(framework, monkeypatch):
    def fail(key):
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(framework, "open_bench", fail)
    with pytest.warns(RuntimeWarning, match="not enough memory.*own choice runs 256x4096x4096"):
        first_use(framework)
    first_use(framework)
    assert _cache.in_force() == []


@pytest.mark.parametrize("name", ["tuning_key", "device_info", "set_tuned"])
@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, OverflowError])
def test_a_first_use_never_raises(framework, monkeypatch, name, error):
    def fail(*arguments, **options):
        raise error("broken")

    monkeypatch.setattr(_tune._core, name, fail)
    with pytest.warns(RuntimeWarning, match="broken: .*own choice runs 256x4096x4096"):
        first_use(framework)
    monkeypatch.undo()
    assert not _tune._tuning.locked()


def test_nothing_to_compute_is_not_tuned(framework):
    product, where = _cache.arguments(KEY, GPU)
    product[4] = 0  # K
    _tune.at_first_use(product, {**where, "device": None}, framework.open_bench)
    assert framework.opened == []


def test_threads_tune_a_product_once(framework):
    threads = [threading.Thread(target=first_use, args=(framework,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(framework.opened) == 1


def test_tuned_as_json():
    tuned = Tuned(GPU, 13000, "0.1.0", KEY, PINGPONG, 1.0, PINGPONG, 2.0)
    assert tuned.as_json()["m"] == 4096 and tuned.as_json()["microseconds"] == 1.0
    assert "key" not in tuned.as_json()
    assert str(KEY) == "4096x4096x4096 kk bfloat16 132 SMs"
