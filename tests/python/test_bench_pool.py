"""benchmarks/run.py and its processes without a GPU: a stand-in for the process that measures."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from hopgemm import _core
from hopgemm._bench_case import Check, bytes_moved, flops, products
from hopgemm._shapes import SUITES, format_shape

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

# Answers as worker.py does. M = 13: dies; M = 14: hangs; what it records is who measured.
WORKER = """
import json, os, sys, time
sys.path.insert(0, {hopgemm!r})
from pathlib import Path
from hopgemm._bench_results import Results
path = Path(sys.argv[1])
if {broken}:
    raise SystemExit("no GPU")
header = dict(commit={commit!r}, gpu="H200", driver="1", torch="2", jax=None)
results = Results(header, path)
print(json.dumps(dict(ready="GPU")), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    shape = "x".join(map(str, job["shape"]))
    if job["shape"][0] == 13:
        os._exit(1)
    if job["shape"][0] == 14:
        time.sleep(60)
    names = ("cublas", "hopgemm", "batch_invariant", *job["peers"])
    results.add(
        dict(shape=shape, dtype=job["dtype"], layout=job["layout"], protocol=job["protocol"],
             framework="torch", contender=name, requested="", tflops=1.0, ratio_to_cublas=1.0,
             error=None, correct=True, card=os.environ["CUDA_VISIBLE_DEVICES"], process=os.getpid())
        for name in names
    )
    print(json.dumps(dict(lines=[shape], ok=job["shape"][0] != 15)), flush=True)
"""


@pytest.fixture
def bench(monkeypatch):
    """Imports a script of benchmarks/ by name."""
    if not (BENCHMARKS / "run.py").is_file():
        pytest.skip("benchmarks/ is not beside the tests")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def command(tmp_path):
    """The command of a stand-in for worker.py."""

    def make(broken=False):
        site = str(Path(importlib.import_module("hopgemm").__file__).parents[1])
        script = tmp_path / f"worker_{broken}.py"
        script.write_text(WORKER.format(hopgemm=site, broken=broken, commit=_core.commit))
        return (sys.executable, str(script))

    return make


def make_jobs(bench, *sizes):
    return [bench("jobs").Job((m, 64, 64), "bf16", "kk", "single") for m in sizes]


def test_every_job_is_done_once_and_a_shape_stays_on_one_card(bench, command, tmp_path):
    jobs, lines = make_jobs(bench, *range(64, 76)), []
    parts = [tmp_path / f"{i}.json" for i in range(3)]
    pool = bench("pool").Pool(jobs, parts, 1e9, lines.append)
    assert pool.run(command())
    assert pool.left == []
    found = [r for p in parts if p.exists() for r in json.loads(p.read_text())["records"]]
    assert sorted(r["shape"] for r in found) == sorted(3 * [format_shape(j.shape) for j in jobs])
    for shape in {r["shape"] for r in found}:
        group = [r for r in found if r["shape"] == shape]
        assert len({(r["card"], r["process"]) for r in group}) == 1
    assert {r["card"] for r in found} <= {"0", "1", "2"}
    assert len(lines) == 12
    assert lines[-1].startswith("[12/12 ")


def test_a_process_that_dies_or_hangs_costs_its_job_alone(bench, command, tmp_path, monkeypatch):
    pool = bench("pool")
    monkeypatch.setattr(pool, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(pool, "_PATIENCE", 0.0)
    lines = []
    one = pool.Pool(make_jobs(bench, 13, 64, 14, 65), [tmp_path / "0.json"], 1e9, lines.append)
    assert not one.run(command())
    records = json.loads((tmp_path / "0.json").read_text())["records"]
    assert {r["shape"] for r in records} == {"64x64x64", "65x64x64"}
    assert [line.partition(" s] ")[2].partition(":")[0] for line in lines if "LOST" in line] == [
        "13x64x64 bf16 kk single",
        "14x64x64 bf16 kk single",
    ]


def test_a_process_that_does_not_start_ends_the_run(bench, command, tmp_path):
    lines = []
    pool = bench("pool").Pool(make_jobs(bench, 64, 65), [tmp_path / "0.json"], 1e9, lines.append)
    assert not pool.run(command(broken=True))
    assert len(pool.left) == 2
    assert "did not start" in lines[0]


def test_a_wrong_result_is_a_failure_of_the_run(bench, command, tmp_path):
    pool = bench("pool").Pool(make_jobs(bench, 15, 64), [tmp_path / "0.json"], 1e9, lambda line: None)
    assert not pool.run(command())
    assert pool.left == []


def test_the_budget_begins_nothing_that_would_end_later(bench, command, tmp_path):
    Job = bench("jobs").Job
    long, short = (
        Job((8192, 8192, 8192), "bf16", "kk", "sustained"),
        Job((64, 64, 64), "bf16", "kk", "single"),
    )
    assert long.expected_s > 10 > short.expected_s
    pool = bench("pool").Pool([long, short], [tmp_path / "0.json"], 10.0, lambda line: None)
    assert pool.run(command())
    assert pool.left == [long]


def test_which_gpus(bench, monkeypatch):
    visible = bench("pool").visible_gpus
    assert visible(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6")
    assert visible(2) == ["3", "5"]


def test_expected_seconds_follow_the_protocol(bench):
    jobs = bench("jobs")
    sustained = jobs.Job((8192, 8192, 4096), "bf16", "kn", "sustained")
    assert 13.2 < sustained.expected_s < 16  # two contenders, three rounds of 2.2 s
    square = jobs.Job((8192, 8192, 8192), "bf16", "kk", "sustained")
    assert square.expected_s - sustained.expected_s == pytest.approx(10)  # the energy of two
    peers = jobs.Job((8192, 8192, 4096), "bf16", "kn", "sustained", ("triton",))
    assert peers.expected_s > sustained.expected_s + 6.6
    assert jobs.total_s([sustained] * 8, 4) == pytest.approx(jobs.START_S + 2 * sustained.expected_s)
    assert jobs.total_s([], 4) == 0


def test_order(bench):
    """Groups in turn, each job once; the longest first, or the shortest where the budget is too small."""
    jobs = bench("jobs")
    long, short = (
        jobs.Job((m, 8192, 8192), "bf16", "kk", p) for m, p in ((8192, "sustained"), (64, "single"))
    )
    last = jobs.Job((65, 8192, 8192), "bf16", "kk", "single")
    assert jobs.in_order([[short, long], [last, long]], 1, 1e9) == [long, short, last]
    assert jobs.in_order([[long, short], [last, long]], 1, 1.0) == [short, long, last]


def test_rows_hold_what_they_say(bench):
    rows = bench("rows")
    large, training = rows.BY_NAME["large"], rows.BY_NAME["training"]
    assert {job.shape for job in large.jobs} == {s for s in SUITES["all"] if s[0] >= 512}
    covered = {job.shape for name in ("large", "small", "m256") for job in rows.BY_NAME[name].jobs}
    assert covered == set(SUITES["all"])
    assert {job.layout for job in training.jobs} == {"training-nk", "training-kn"}
    assert {job.protocol for job in training.jobs} == {"sustained"}
    assert {(job.dtype, job.protocol) for job in rows.BY_NAME["burst"].jobs} == {
        ("bf16", "burst"),
        ("fp16", "burst"),
    }
    assert set(rows.BY_NAME["squares"].jobs) & set(large.jobs)  # measured once for both


def test_training_products():
    shape = (4096, 28672, 8192)
    assert products(shape, "kk") == ((shape, "kk"),)
    for layout in ("training-nk", "training-kn"):
        found = products(shape, layout)
        assert flops(shape, layout) == 3 * flops(shape, "mn")
        assert sum(bytes_moved(s) for s, _ in found) == 3 * bytes_moved(shape)
    assert [majors for _, majors in products(shape, "training-nk")] == ["kk", "kn", "mn"]
    assert [majors for _, majors in products(shape, "training-kn")] == ["kn", "kk", "mn"]


def run_cli(bench, monkeypatch, command, *arguments, devices=8):
    run = bench("run")
    monkeypatch.setattr(run._core, "device_count", lambda: devices)
    monkeypatch.setattr(bench("pool").Pool.run, "__defaults__", (command(),))
    return run.main(list(arguments))


def test_run_merges_and_continues(bench, monkeypatch, command, tmp_path, capsys):
    path = tmp_path / "r.json"
    arguments = ("--shapes", "64x64x64,65x64x64,66x64x64", "--gpus", "2", "--json", str(path))
    assert run_cli(bench, monkeypatch, command, *arguments, "--max-m", "65") == 0
    assert [p.name for p in tmp_path.glob("r*.json")] == ["r.json"]
    assert len(json.loads(path.read_text())["records"]) == 6
    path.rename(tmp_path / "r.gpu7.json")  # what an interrupted run leaves
    assert run_cli(bench, monkeypatch, command, *arguments) == 0
    assert "1 shapes to measure" in capsys.readouterr().out
    assert len(json.loads(path.read_text())["records"]) == 9
    assert not (tmp_path / "r.gpu7.json").exists()


def test_run_estimates_without_a_gpu(bench, capsys):
    assert bench("run").main(["--rows", "all", "--gpus", "4", "--estimate"]) == 0
    count, seconds = (int(word) for word in capsys.readouterr().out.split() if word.isdecimal())
    assert count == len({job.key for row in bench("rows").ROWS for job in row.jobs})
    assert 100 < seconds < 1000


def test_run_takes_peers_on_the_core_suite_alone(bench):
    run = bench("run")
    options = run._parser().parse_args(["--suite", "squares", "--peers", "triton,quack", "--layout", "kk,kn"])
    (jobs,) = run._groups(options)
    assert {job.peers for job in jobs if job.shape in SUITES["core"]} == {("triton", "quack")}
    assert {job.peers for job in jobs if job.shape not in SUITES["core"]} == {()}
    assert {job.layout for job in jobs} == {"kk", "kn"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "9", "--shapes", "64x64x64"], "--gpus 9: this machine has 8"),
        (["--rows", "everything"], "'everything': must be of squares, large"),
        (["--layout", "tn"], "'tn': must be of kk, kn"),
        (["--gpus", "0"], "must be a positive integer"),
    ],
)
def test_run_refuses(bench, monkeypatch, command, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        run_cli(bench, monkeypatch, command, *arguments, "--json", str(tmp_path / "r.json"))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_run_refuses_a_file_of_another_commit_before_it_measures(
    bench, monkeypatch, command, tmp_path, capsys
):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"header": {"commit": "other"}, "records": []}))
    with pytest.raises(SystemExit):
        run_cli(bench, monkeypatch, command, "--json", str(path))
    assert "is of commit other" in capsys.readouterr().err


def test_worker_measures_job_by_job(bench):
    """The worker's own loop, on a rig that takes no time."""
    from hopgemm._bench import Roofs, Session, Task
    from hopgemm._bench_meter import Meter
    from hopgemm._bench_results import Results

    class Contender:
        timing, config = "none", ""

        def __init__(self, name):
            self.name = name

        def run(self, launches):
            return launches, launches * 1e-3

        def check(self):
            return Check(True, 0.0)

    class Rig:
        name, uuid = "torch", "GPU-1"

        def case(self, shape, dtype, layout, graph):
            return self

        def baselines(self):
            return [Contender("cublas")]

        def chosen(self, config, batch_invariant):
            return ""

        def hopgemm(self, config):
            return Contender("hopgemm")

        def release(self):
            pass

    header = {"commit": "abc"}
    session = Session(Task(()), Rig(), Meter(), Roofs(1e12, 1e15, 1e15), 132, Results(header))
    peers, answers = bench("peers").load(["quack"]), []
    job = {"shape": [64, 64, 64], "dtype": "bf16", "layout": "kn", "protocol": "single", "peers": ["quack"]}
    bench("worker").serve(session, peers, [json.dumps(job), json.dumps(job)], answers.append)
    assert answers[0]["ok"]
    assert len(answers[0]["lines"]) == 4
    found = {r["contender"]: r["error"] for r in session.results.records}
    assert found.keys() == {"cublas", "hopgemm", "batch_invariant", "quack"}
    assert found["quack"] is not None  # not installed, or no GPU for it
    assert {r["layout"] for r in session.results.records} == {"kn"}
