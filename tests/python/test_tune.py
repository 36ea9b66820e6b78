"""What tuning decides: which kernel may win, what is kept, when a first use tunes. Times are simulated."""

import threading

import pytest

import hopgemm
from hopgemm import _cache, _core, _tune, _tune_race
from hopgemm._cache import Key, Tuned
from hopgemm._shapes import SUITES

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
        self.config, self.seconds, self.runs = config, seconds, []

    def run(self, launches):
        self.runs.append(launches * self.seconds)
        return launches, launches * self.seconds


class Bench:
    """Kernels take 100 us, but those that `times` names; a name without schedule covers all of its own."""

    def __init__(self, times, wrong=()):
        self.times, self.wrong, self.contenders, self.checked = times, wrong, {}, []

    def is_exact(self, config):
        self.checked.append(config)
        return config.partition("+")[0] not in self.wrong

    def contender(self, config):
        assert config not in self.contenders  # a graph or a compiled program each: made once
        instance = config.partition("+")[0]
        self.contenders[config] = Contender(config, self.times.get(config, self.times.get(instance, 100e-6)))
        return self.contenders[config]


def quiet(done, text):
    pass


def search(times, wrong=(), key=KEY, effort=_tune_race.THOROUGH):
    return _tune.search(key, GPU, lambda _: Bench(times, wrong), quiet, effort)


def default(key=KEY):
    return _tune_race.plan_of(key, GPU, tuned=False)["config"]


def instances(key=KEY):
    return {config.partition("+")[0] for config in _tune_race.candidates(key, GPU)}


EFFORTS = [_tune_race.THOROUGH, _tune_race.SUITE, _tune_race.FIRST_USE]


@pytest.mark.parametrize("effort", EFFORTS)
def test_the_fastest_wins(effort):
    found = search({PINGPONG: 50e-6}, effort=effort)
    assert found.config.partition("+")[0] == PINGPONG
    assert found.microseconds == pytest.approx(50)
    assert (found.default_config, found.default_microseconds) == (default(), pytest.approx(100))
    assert found.key == KEY and found.gpu == GPU


@pytest.mark.parametrize("effort", EFFORTS)
def test_a_schedule_of_the_fastest_wins(effort):
    found = search({PINGPONG: 50e-6, PINGPONG + "+n8+ctas132": 40e-6}, effort=effort)
    assert found.config == PINGPONG + "+n8+ctas132"


def test_the_default_stays_unless_beaten_by_more_than_noise():
    assert search({PINGPONG: 99.5e-6}).config == default()
    assert search({PINGPONG: 98e-6}).config != default()


def test_a_wrong_kernel_never_wins():
    with pytest.warns(RuntimeWarning, match=f"{PINGPONG}.*wrong numbers"):
        found = search({PINGPONG: 1e-6}, wrong=[PINGPONG])
    assert found.config == default() and found.microseconds == pytest.approx(100)


def test_a_wrong_default_does_not_stay():
    wrong = default().partition("+")[0]
    with pytest.warns(RuntimeWarning, match="wrong numbers"):
        found = search({default(): 1e-6}, wrong=[wrong])
    assert found.config.partition("+")[0] != wrong
    assert found.default_microseconds == found.microseconds  # nothing to compare with


def test_no_exact_kernel_is_an_error():
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="no kernel multiplies"):
        search({}, wrong=instances())


def test_only_finalists_are_checked():
    bench = Bench({PINGPONG: 50e-6})
    _tune.search(KEY, GPU, lambda _: bench, quiet, _tune_race.THOROUGH)
    assert len(bench.checked) == len(set(bench.checked)) <= 4 < len(bench.contenders)


def test_a_hopeless_kernel_is_looked_at_once():
    bench = Bench({PINGPONG: 0.5})
    found = _tune.search(KEY, GPU, lambda _: bench, quiet, _tune_race.THOROUGH)
    (slow,) = [x for x in bench.contenders if x.startswith(PINGPONG) and not _tune_race.deals_k(x)]
    assert bench.contenders[slow].runs == [0.5] and not found.config.startswith(PINGPONG)


@pytest.mark.parametrize("effort", EFFORTS)
def test_finalists_of_long_products_run_alone_as_long_as_the_effort_says(effort):
    key = KEY._replace(m=16384, n=16384, k=16384)
    times = dict.fromkeys(instances(key), 12e-3) | {PINGPONG: 11.5e-3}
    bench = Bench(times)
    found = _tune.search(key, GPU, lambda _: bench, quiet, effort)
    assert found.config.startswith(PINGPONG) and found.microseconds == pytest.approx(11500)
    timing = effort.long
    for config in (found.config, default(key)):
        last = bench.contenders[config].runs[-timing.rounds * (2 if timing.settle_s else 1) :]
        want = [x for x in (timing.settle_s, timing.window_s) if x] * timing.rounds
        assert all(-1e-9 < ran - asked < 13e-3 for ran, asked in zip(last, want, strict=True))
    assert effort is _tune_race.FIRST_USE or timing.settle_s > 0


def test_the_best_for_batch_invariant_calls_needs_no_other_operands():
    key, bench = KEY._replace(m=16), Bench({})
    race = _tune_race.Race(GPU, bench, _tune_race.SUITE)
    split = "bf16_kk_16x128x64_c1x1_s11_swap+split4"
    plain = "bf16_kk_64x128x64_c1x1_s8_pingpong"
    bench.times = {split: 40e-6, plain: 60e-6}
    assert race.winner(key, quiet).config == split
    found = race.winner(key._replace(batch_invariant=True), quiet)
    assert (found.config, found.key.batch_invariant) == (plain, True)
    assert found.microseconds == pytest.approx(60)


@pytest.mark.parametrize("changed", [{}, {"sm_count": 1}, {"batch_invariant": True}, {"majors": "mn"}])
def test_every_candidate_and_schedule_can_run(changed):
    """Asked by its name, each gives itself: what was timed is what will run."""
    key = KEY._replace(**changed)
    names = _tune_race.candidates(key, GPU)
    variants = _tune_race.schedules(names, key, GPU)
    assert names and variants
    assert len({*names, *variants}) == len(names) + len(variants)
    for name in (*names, *variants):
        found = _tune_race.plan_of(key, GPU, name)["config"]
        assert found == name
        assert key.majors in name
        assert not key.batch_invariant or not _tune_race.deals_k(name)


@pytest.mark.parametrize("majors", ["kk", "mn"])
def test_what_is_left_out_of_the_candidates(majors):
    """Tiles of padding, narrow tiles by the dozen, parts of K after many waves; but never the default."""
    for m, n, k in SUITES["edges"] + tuple((m, 4096, 4096) for m in (1, 16, 64, 128, 256)):
        key = KEY._replace(majors=majors, m=m, n=n, k=k)
        names = _tune_race.candidates(key, GPU)
        assert default(key).partition("+")[0] in instances(key)
        assert all(m <= 256 for name in names if "_swap" in name)
    few = [len(_tune_race.candidates(KEY._replace(m=m), GPU)) for m in (16, 65536)]
    tiles = sum("_swap" not in name for name in instances(KEY))
    assert few[1] <= tiles < few[0]  # every tile once; swapped kernels and parts of K beside them
    many_waves = _tune_race.candidates(KEY._replace(m=65536), GPU)
    assert not any(_tune_race.deals_k(name) for name in many_waves)
    assert not any("_256x" in name for name in _tune_race.candidates(KEY._replace(m=1), GPU))


def test_each_order_of_one_wave_is_tried_once():
    """2 x 64 tiles of 128x112: strips are 2 wide at most, and +m8 is the usual walk."""
    key, kernel = KEY._replace(m=256, n=7168, k=16384), "bf16_kk_128x112x64_c1x1_s6_pingpong"
    tried = _tune_race.schedules([kernel], key, GPU)
    assert [x.split("+")[1] for x in tried] == ["m4", "m16", "n1", "n4"]
    of_another_walk = _tune_race.schedules([f"{kernel}+n8+ctas132"], key, GPU)
    assert [x.split("+")[1] for x in of_another_walk] == ["m4", "ctas132", "m16", "n1"]
    assert _tune_race.schedules([kernel], key._replace(m=128), GPU) == []  # one row


def test_tails_are_of_the_last_wave_or_two():
    """2048 x 2112 is 144 tiles of 128x256: 132 and 12, which are dealt to 132 SMs, alone or with all."""
    names = _tune_race.candidates(KEY._replace(m=2048, n=2112, k=7168), GPU)
    tails = {x.partition("+")[2] for x in names if "128x256x64_c1x1" in x and "+tail" in x}
    assert tails == {"tail12x132", "tail144x132"}
    names = _tune_race.candidates(KEY._replace(m=512, n=512, k=65536), GPU)  # 16 tiles of 128x128
    tails = {x.partition("+")[2] for x in names if "128x128x64_c1x1_s6_pingpong" in x and "+tail" in x}
    assert tails == {"tail16x132", "tail16x128"}


def test_k_is_split_for_many_tiles_too():
    """Parts of K fill the last wave of 224 tiles; 1010 tiles are more waves than pay."""
    kernel = "bf16_kk_16x128x64_c1x1_s11_swap"
    for n, k, splits in (28672, 4096, {2, 4}), (32768, 128, set()), (129280, 7168, set()):
        names = _tune_race.candidates(KEY._replace(m=1, n=n, k=k), GPU)
        assert {
            int(x.removeprefix(f"{kernel}+split")) for x in names if x.startswith(f"{kernel}+split")
        } == splits


def test_walks_keep_the_parts_of_k():
    key = KEY._replace(m=128, n=65536)
    swapped = "bf16_kk_64x128x64_c1x1_s7_swap+split2"
    assert f"{swapped.partition('+')[0]}+n4+ctas132+split2" in _tune_race.schedules([swapped], key, GPU)


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
        ([(64, 64, 64)], {"sm_limit": -1}, "sm_limit is -1"),
    ],
)
def test_what_tune_refuses(framework, shapes, options, message):
    with pytest.raises(ValueError, match=message):
        hopgemm.tune(shapes, **options)
    assert framework.opened == []


@pytest.mark.parametrize(("option", "value"), [("sm_limit", 1.5), ("batch_invariant", "0")])
def test_types_that_tune_refuses(framework, option, value):
    with pytest.raises(TypeError, match=f"hopgemm.tune: {option} is {value!r}"):
        hopgemm.tune([(64, 64, 64)], **{option: value})
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
