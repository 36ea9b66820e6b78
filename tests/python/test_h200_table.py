"""The shipped table of winners: how it is written, that it is what was committed, and how it is measured."""

import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hopgemm
from hopgemm import _core, _tune_race
from hopgemm._bench_results import load
from hopgemm._cache import Key, Tuned
from hopgemm._shapes import SUITES

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "benchmarks/make_table.py").exists():
    pytest.skip("benchmarks/ is not beside the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT / "benchmarks"))
make_slower, make_table, tune_table, tune_worker = map(
    importlib.import_module, ("make_slower", "make_table", "tune_table", "tune_worker")
)
sys.path.pop(0)

GPU = {"name": "NVIDIA H200", "sm_count": 132}
KEY = Key("bfloat16", "bfloat16", "kk", 16, 4096, 4096, 1, 1, 132, False)
SWAP = "kk_16x128x64_c1x2_s11_swap"
COOP = "128x256x64_c2x1_s4_coop"


def record(config, us=10.0, default="kk_64x64x64_c1x1_s12_pingpong", default_us=20.0, **key):
    key = KEY._replace(**key)
    key = key._replace(out_dtype=key.dtype)
    name = {"bfloat16": "bf16_", "float16": "f16_"}[key.dtype]
    return Tuned(GPU["name"], 13000, "0", key, name + config, us, name + default, default_us).as_json()


def rows(*records):
    return [make_table.row(entry) for entry in make_table.entries(records)]


# ---- results to C++ ----


def test_the_committed_table_is_what_its_results_give():
    sources = make_table.shipped()
    if not sources and not (ROOT / "benchmarks/results").is_dir():
        pytest.skip("no results beside the tests")
    table = make_table.entries(make_table.records_of(sources))
    assert make_table.render(table, [x.name for x in sources]) == make_table.OUTPUT.read_text()


def test_the_committed_list_of_what_cublas_does_faster_is_what_its_results_give():
    text = make_slower.OUTPUT.read_text()
    sources = [ROOT / "benchmarks/results" / name for name in re.findall(r"\S+\.json", text)]
    if not all(x.exists() for x in sources):
        pytest.skip("no results beside the tests")
    found = make_slower.slower(record for x in sources for record in load(x)["records"])
    assert found and make_slower.render(found, [x.name for x in sources]) == text
    for (m, n, k), majors, _ in found:
        said = "; cuBLAS was measured faster"
        assert hopgemm.plan(m=m, n=n, k=k, majors=majors).reason.endswith(said)
        assert said in hopgemm.plan(m=m, n=n, k=k, majors=majors, sm_limit=132).reason
        others_are = {"n": n + 8}, {"sm_limit": 131}, {"batch": (2,)}, {"out_dtype": "float32"}
        with_more = {"bias": True}, {"c": True, "beta": 1}, {"dtype": "float16"}, {"batch_invariant": True}
        for others in (*others_are, *with_more):
            sizes = {"m": m, "n": n, "k": k, "majors": majors, **others}
            assert said not in hopgemm.plan(**sizes).reason


def test_what_is_slower_in_the_mean_of_the_kernel_of_today():
    config = hopgemm.plan(m=4096, n=4096, k=4096).config
    usual = {"contender": "hopgemm", "requested": "", "correct": True, "dtype": "bf16", "layout": "kk"}
    usual |= {"shape": "4096x4096x4096", "config": config}

    def found(*records):
        return [x[:2] for x in make_slower.slower([{**usual, **x} for x in records])]

    slow, fast = {"ratio_to_cublas": 0.97}, {"ratio_to_cublas": 0.99}
    assert found(slow, fast) == [((4096, 4096, 4096), "kk")]
    assert not found(slow, fast, fast) and not found(fast, fast) and not found(slow)
    other = {"config": "bf16_kk_64x64x64_c1x1_s12_pingpong"}
    for changed in (other, {"dtype": "fp16"}, {"layout": "training-kn"}, {"contender": "cublas"}):
        assert not found(slow | changed, slow | changed)


def test_every_shipped_entry_answers_and_can_run():
    table = make_table.entries(make_table.records_of(make_table.shipped()))
    if not table:
        pytest.skip("the shipped table is empty")
    for entry in table:
        for dtype, short in (("bfloat16", "bf16"), ("float16", "f16")):
            if entry.dtype in ("", dtype):
                key = Key(dtype, dtype, entry.majors, entry.m, entry.n, entry.k, 1, 1, 132, entry.invariant)
                plan = _tune_race.plan_of(key, GPU["name"], tuned=False)
                assert plan["config"] == f"{short}_{entry.config}"
                reason = plan["reason"].removesuffix("; cuBLAS was measured faster")
                assert reason == f"measured on an H200 SXM at {entry.m}x{entry.n}x{entry.k}"


def test_rows():
    """A swapped kernel's name is the caller's way round, its KernelConfig the kernel's."""
    assert rows(
        record(SWAP + "+split2", k=14336),
        record("mn_" + COOP, majors="mn", m=8192),
        record("kn_" + COOP + "+n16+ctas128", majors="kn", m=2048),
        record("kn_64x128x64_c1x1_s7_swap+m4+ctas132+split2", majors="kn"),
    ) == [
        "{16, 4096, 14336, kBoth, kAny, {{kAny16, kK, kK, 128, 16, 2, 1, 11, kSwapped}, {.split = 2}}}",
        "{16, 4096, 4096, kBoth, kAny, {{kAny16, kMN, kK, 128, 64, 1, 1, 7, kSwapped},\n"
        "        {.group = 4, .max_ctas = 132, .split = 2}}}",
        "{2048, 4096, 4096, kBoth, kAny, {{kAny16, kK, kMN, 128, 256, 2, 1, 4, kCooperative},\n"
        "        {.along_m = false, .group = 16, .max_ctas = 128}}}",
        "{8192, 4096, 4096, kBoth, kAny, {{kAny16, kMN, kMN, 128, 256, 2, 1, 4, kCooperative}, {}}}",
    ]


def test_the_default_stays_where_it_is_as_good_as_the_winner():
    for default_us, config in ((10.05, "kk_" + COOP), (10.2, SWAP)):
        (entry,) = make_table.entries([record(SWAP, default="kk_" + COOP, default_us=default_us)])
        assert entry.config == config


def test_a_winner_of_kk_stands_for_layouts_that_were_not_measured():
    long = record("kk_" + COOP + "+tail3x66")
    other = record("kn_" + COOP, majors="kn")
    found = make_table.for_other_layouts([long, other, record(SWAP, m=32)])
    assert [(x["majors"], x["m"], x["config"]) for x in found] == [
        ("mk", 16, f"bf16_mk_{COOP}+tail3x66"),
        ("mn", 16, f"bf16_mn_{COOP}+tail3x66"),
        ("kn", 32, f"bf16_{SWAP.replace('kk', 'kn')}"),  # its 16 rows are of a K-major A alone
    ]


def test_a_winner_that_is_no_longer_compiled_is_left_out(tmp_path):
    gone = SWAP.replace("s11", "s10")
    assert f"bf16_{gone}" not in _core.configs()
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"header": {}, "records": [record(gone), record(SWAP, m=32)]}))
    assert {x["m"] for x in make_table.records_of([file])} == {32}


def test_what_is_compared_sustained_is_the_cost_models():
    def count(m, n, k, majors="kk"):
        return len(make_table.entries([record(f"{majors}_{COOP}", majors=majors, m=m, n=n, k=k)]))

    assert count(4096, 4096, 4096) == 0  # a big square
    assert count(8192, 10240, 8192) == 0  # 2 ms
    assert count(4096, 6144, 4096) == count(6144, 4096, 4096, "mn") == 0  # of a training step
    assert count(6144, 4096, 4096) == count(2048, 6144, 4096) == 1


def test_a_later_record_counts():
    (entry,) = make_table.entries([record(SWAP), record("kk_" + COOP)])
    assert entry.config == "kk_" + COOP
    # And takes the place of all that the earlier one stood for.
    split = [record(SWAP + "+split2"), record(SWAP, batch_invariant=True)]
    (entry,) = make_table.entries([*split, record("kk_" + COOP)])
    assert (entry.config, entry.invariant) == ("kk_" + COOP, False)


def test_batch_invariant_calls_get_a_row_only_where_theirs_is_another():
    plain = record("kk_" + COOP, batch_invariant=True)
    found = make_table.entries([record(SWAP + "+split2"), plain])
    assert [(x.invariant, x.config) for x in found] == [(False, SWAP + "+split2"), (True, "kk_" + COOP)]
    assert len(make_table.entries([record("kk_" + COOP), plain])) == 1


def test_one_row_for_both_dtypes_unless_they_differ():
    alike = make_table.entries([record(SWAP), record(SWAP, dtype="float16")])
    assert [x.dtype for x in alike] == [""]
    found = make_table.entries([record(SWAP), record("kk_" + COOP, dtype="float16")])
    assert [(x.dtype, x.config) for x in found] == [("bfloat16", SWAP), ("float16", "kk_" + COOP)]
    assert [x.split(", ")[3] for x in map(make_table.row, found)] == ["kOnlyBF16", "kOnlyF16"]


@pytest.mark.parametrize(
    "changed", [{"gpu": "NVIDIA H100"}, {"sm_count": 100}, {"batch_inner": 2}, {"out_dtype": "float32"}]
)
def test_what_the_table_is_not_for_is_refused(changed):
    (name,) = changed
    with pytest.raises(ValueError, match=f"16x4096x4096: {name} is"):
        make_table.entries([{**record(SWAP), **changed}])


@pytest.mark.parametrize("config", [SWAP + "+k8", SWAP + "+af", SWAP + "+", "kk_16x128"])
def test_a_config_that_cannot_stand_there_is_refused(config):
    with pytest.raises(ValueError, match="no part of the shipped table|not a config's name"):
        rows(record(config))


def test_the_file_compiles_and_is_sorted(tmp_path):
    """C++ asserts the order of the rows, which are searched by halves."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    records = [
        record(f"{majors}_{COOP}", majors=majors, m=m, n=n, k=k, dtype=dtype, batch_invariant=invariant)
        for majors in ("mn", "kn", "kk", "mk")
        for m, n, k in ((4096, 8192, 64), (8192, 4096, 64), (10, 4096, 9000), (10, 4096, 900))
        for dtype in ("float16", "bfloat16")
        for invariant in (False, True)
    ]
    for i, x in enumerate(records):
        x["config"] += "" if x["batch_invariant"] else f"+ctas{i + 1}"  # no two alike
    table = make_table.entries(records)
    assert len(table) == len(records)
    file = tmp_path / "table.cc"
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT}/src", str(file)]
    for order, status in ((table, 0), (table[::-1], 1)):
        file.write_text(make_table.render(order, ["some.json"]))
        assert subprocess.run(command, capture_output=True).returncode == status


# ---- measuring ----

# Answers as tune_worker.py does, by its own `serve`. M = 2: the process dies.
WORKER = """
import json, os, sys
sys.path[:0] = {path!r}
import test_h200_table as tests
from tune_worker import Records, serve
print(json.dumps(dict(ready="GPU")), flush=True)
serve(Records({folder}(sys.argv[1]), tests.GPU["name"]), sys.stdin,
      lambda what: print(json.dumps(what), flush=True), tests.work)
"""


def key_of(m):
    return KEY._replace(m=m)


def work(key, gpu):
    if key.m == 2:
        os._exit(1)
    card = int(os.environ["CUDA_VISIBLE_DEVICES"])
    return [record("kk_" + COOP, m=key.m, us=1.0 + card)]


@pytest.fixture
def records(tmp_path):
    return tune_worker.Records(tmp_path / "table.json", GPU["name"])


@pytest.fixture
def worker(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file = tmp_path / "worker.py"
    path = [str(ROOT / "benchmarks"), str(Path(__file__).parent), *sys.path]
    file.write_text(WORKER.format(path=path, folder="__import__('pathlib').Path"))
    return sys.executable, str(file)


def test_small_m_and_core_first_then_the_longest_layout_by_layout():
    keys = tune_table.products("all", ["kk", "mn"], "bfloat16", GPU)
    assert len(keys) == len(set(keys))
    assert {(768, 2304, 8192), (2304, 768, 8192)} <= {(x.m, x.n, x.k) for x in keys if x.majors == "mn"}
    sustained = {(8192, 8192, 8192), (8192, 10240, 8192), (4096, 6144, 4096)}
    assert sustained <= set(SUITES["all"]) and not sustained & {
        (x.m, x.n, x.k) for x in keys if x.majors == "kk"
    }
    kk = list(itertools.takewhile(lambda key: key.majors == "kk", keys))
    assert 0.8 * len(SUITES["all"]) < len(kk) < len(SUITES["all"])
    first = [key.m <= 256 or (key.m, key.n, key.k) in SUITES["core"] for key in kk]
    assert first == sorted(first, reverse=True) and True in first and False in first
    rest = [key.m * key.n * key.k for key, early in zip(kk, first, strict=True) if not early]
    assert rest == sorted(rest, reverse=True)


def test_gpt2_alone_and_small_m_alone():
    small = tune_table.products("all", ["kk"], "bfloat16", GPU, max_m=128)
    assert small and {x.m for x in small if x.m != 8192} == {m for m, *_ in SUITES["all"] if m <= 128}
    steps = tune_table.products("gpt2", ["kk", "kn", "mn"], "bfloat16", GPU)
    assert {x.majors for x in steps} == {"kk", "kn", "mn"} and {x.m for x in small if x.m == 8192} == {8192}
    assert all(8192 in (x.m, x.k) for x in steps)


def test_several_gpus_measure_into_one_file(records, worker, capsys):
    keys = [key_of(m) for m in (1, *range(3, 20))]
    assert tune_table.run(keys, records, 2, 1e9, worker)
    stored = make_table.load(records.path)
    assert sorted(x["m"] for x in stored["records"]) == [key.m for key in keys]
    assert {x["microseconds"] for x in stored["records"]} <= {1.0, 2.0}  # GPU 0 and GPU 1
    assert len(records.path.read_text().splitlines()) == len(keys) + 3
    entries = make_table.entries(make_table.records_of([records.path]))
    assert [x.m for x in entries if x.majors == "kk"] == [key.m for key in keys]
    assert not list(records.path.parent.glob("*.gpu*"))
    assert f"{len(keys)} records; 0 products left" in capsys.readouterr().out


def test_a_process_that_dies_costs_its_product_alone(records, worker):
    assert not tune_table.run([key_of(m) for m in (1, 2, 3)], records, 1, 1e9, worker)
    assert [x["m"] for x in records.records] == [1, 3]


def test_no_product_is_begun_for_which_there_is_no_time(records, worker, capsys):
    assert tune_table.run([KEY], records, 1, 0, worker)
    assert records.records == [] and "1 products left" in capsys.readouterr().out


def test_a_run_continues_its_file_and_what_an_interrupted_one_has_left(records, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    records.add(work(key_of(1), ""))
    part = tune_worker.Records(records.path.with_suffix(".gpu3.json"), GPU["name"])
    tune_worker.serve(part, [json.dumps({"product": key_of(m)}) for m in (3, 4)], lambda what: None, work)
    again = tune_worker.Records(records.path, GPU["name"])
    tune_table.absorb(again)
    assert again.keys() == {key_of(m) for m in (1, 3, 4)} and not part.path.exists()
    assert tune_worker.Records(records.path, GPU["name"]).records == again.records
    with pytest.raises(ValueError, match="gpu is 'NVIDIA H200', here it is 'NVIDIA H100'"):
        tune_worker.Records(records.path, "NVIDIA H100")


def test_a_winner_that_splits_k_comes_with_one_that_does_not(monkeypatch):
    pytest.importorskip("torch")
    from hopgemm import _tune_torch

    times = {}

    class Contender:
        name = config = ""

        def __init__(self, seconds):
            self.seconds = seconds

        def run(self, launches):
            return launches, launches * self.seconds

    class Bench:
        def is_exact(self, config):
            return True

        def contender(self, config):
            return Contender(times.get(config, 50e-6))

    monkeypatch.setattr(_tune_torch, "open_bench", lambda key: Bench())
    plain, split = f"bf16_{SWAP}", f"bf16_{SWAP}+split2"
    times |= {plain: 20e-6, split: 10e-6}
    found = tune_worker.measure(KEY, GPU["name"])
    assert [(x["config"], x["batch_invariant"]) for x in found] == [(split, False), (plain, True)]
    times[plain] = 5e-6
    assert [x["config"] for x in tune_worker.measure(KEY, GPU["name"])] == [plain]


@pytest.mark.gpu
def test_measuring_on_this_gpu(tmp_path, capfd):
    """Winners of two small products, through a process of its own: exact, and no slower than the default."""
    gpu = _core.device_info(0)
    records = tune_worker.Records(tmp_path / "table.json", gpu["name"])
    keys = [KEY._replace(m=m, n=n, sm_count=gpu["sm_count"]) for m, n in ((16, 4096), (512, 512))]
    assert tune_table.run(keys, records, 1, 1e9), capfd.readouterr().err
    assert {x["m"] for x in records.records} == {16, 512}
    for x in records.records:
        assert 0 < x["microseconds"] <= 1.05 * x["default_microseconds"]
        key = Key(*(x[name] for name in Key._fields))
        assert _tune_race.plan_of(key, gpu["name"], x["config"])["config"] == x["config"]
