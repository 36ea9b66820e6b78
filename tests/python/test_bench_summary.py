"""The table of speed: what it says of records that are there, wrong, or missing."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from hopgemm._shapes import SUITES, format_shape

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEADER = {"gpu": "H200", "commit": "abc", "driver": "1", "torch": "2", "jax": None, "date": "2026-01-01T00"}


@pytest.fixture
def bench(monkeypatch):
    """Imports a script of benchmarks/ by name."""
    if not (BENCHMARKS / "summary.py").is_file():
        pytest.skip("benchmarks/ is not beside the tests")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def group(job, ratio, invariant=1.0, **more):
    """What a job leaves: cuBLAS at 600 TFLOP/s and hopgemm at `ratio` of it."""
    shape, dtype, layout, protocol = job.key
    base = {
        **{"shape": shape, "dtype": dtype, "layout": layout, "protocol": protocol, "framework": "torch"},
        **{"requested": "", "config": "kernel", "error": None, "correct": True, "spread": 0.01},
        "ratio_to_roof": 0.9,
    }
    speeds = {"cublas": 1.0, "hopgemm": ratio, "batch_invariant": ratio * invariant}
    return [
        {
            **base,
            "contender": name,
            "tflops": 600 * x,
            "ratio_to_cublas": x,
            **(more if name == "hopgemm" else {}),
        }
        for name, x in speeds.items()
    ]


def cells(bench, name, records):
    tables, rows = bench("tables"), bench("rows")
    return tables.summarize(tables.by_job(records), rows.BY_NAME[name]).cells()


def test_a_row_that_is_reached(bench):
    jobs = bench("rows").BY_NAME["squares"].jobs
    records = [r for i, job in enumerate(jobs) for r in group(job, 1.03 + 0.01 * i, 0.98)]
    aim, count, mean, middle, slowest, under, reached, invariant = cells(bench, "squares", records)
    assert aim == "1.04, none under 1.02"
    assert (count, mean, middle, under, reached) == ("6 of 6", "1.055", "1.055", "0", "yes")
    assert slowest == f"1.030 ({format_shape(jobs[0].shape)} {jobs[0].dtype})"
    assert invariant == "0.980, least 0.98"


@pytest.mark.parametrize(
    ("last", "reached", "under"), [(1.05, "yes", "0"), (1.019, "no", "0"), (0.99, "no", "1")]
)
def test_one_slow_shape_is_enough_to_miss(bench, last, reached, under):
    jobs = bench("rows").BY_NAME["squares"].jobs
    records = [r for job in jobs[:-1] for r in group(job, 1.1)] + group(jobs[-1], last)
    found = cells(bench, "squares", records)
    assert found[5:7] == [under, reached]


def test_a_low_mean_misses(bench):
    records = [r for job in bench("rows").BY_NAME["squares"].jobs for r in group(job, 1.03)]
    assert cells(bench, "squares", records)[6] == "no"


@pytest.mark.parametrize("lack", ["absent", "wrong", "error", "no cublas"])
def test_a_missing_record_is_no_pass(bench, lack):
    *jobs, last = bench("rows").BY_NAME["squares"].jobs
    records = [r for job in jobs for r in group(job, 1.2)]
    if lack == "wrong":
        records += group(last, 1.2, correct=False)
    if lack == "error":
        records += group(last, 1.2, error="RuntimeError: no")
    if lack == "no cublas":
        records += group(last, 1.2)[1:]
    found = cells(bench, "squares", records)
    assert (found[1], found[6]) == ("5 of 6", "no")
    tables = bench("tables")
    named = {"wrong": " (hopgemm: WRONG)", "error": " (hopgemm: cannot)"}.get(lack, "")
    assert f"16384x16384x16384 fp16{named}" in tables.missing(tables.by_job(records))


def test_what_is_not_there_is_not_measured(bench):
    tables = bench("tables")
    text = tables.aims({}, [], [])
    rows = text.splitlines()[2:]
    assert len(rows) == len(bench("rows").ROWS) + 3
    assert all("not measured" in row and "| no |" in row for row in rows)
    assert len({row.count("|") for row in text.splitlines()}) == 1


def test_other_records_do_not_count(bench):
    """Pinned kernels, JAX's, another protocol."""
    job = bench("rows").BY_NAME["squares"].jobs[0]
    for change in ({"requested": "kernel"}, {"framework": "jax"}, {"protocol": "burst"}):
        records = [{**r, **change} for r in group(job, 1.2)]
        assert cells(bench, "squares", records)[1] == "0 of 6"


def test_read_roof_host_time_and_dram(bench):
    tables, rows = bench("tables"), bench("rows")
    jobs = [j for j in rows.BY_NAME["small"].jobs if 2 * j.shape[1] * j.shape[2] > 64e6]
    records = [r for job in jobs for r in group(job, 1.3)]
    host = [
        {"case": "no_grad", "torch_us": 10.0, "hopgemm_us": 9.0},
        {"case": "requires_grad forward", "torch_us": 10.0, "hopgemm_us": 20.0},
    ]
    dram = [{"shape": "8192x8192x8192", "hopgemm_gb": 1.07, "cublas_gb": 1.25}]
    text = tables.aims(tables.by_job(records), host, dram)
    roof, times, read = text.splitlines()[-3:]
    assert f"{len(jobs)} of {len(jobs)} | 0.900 | 0.900 | 0.900" in roof
    assert "| yes |" in roof
    assert "| 0.90 (no_grad) |" in times
    assert "| yes |" in times
    assert "1.07 GB (cuBLAS 1.25)" in read
    assert "| no |" in read
    assert len({row.count("|") for row in text.splitlines()}) == 1
    worse = [r | {"ratio_to_roof": 0.87} if i == 1 else r for i, r in enumerate(records)]
    assert "| no |" in tables.aims(tables.by_job(worse), [], []).splitlines()[-3]


def test_every_slow_shape_is_listed_once_the_slowest_first(bench):
    tables, rows = bench("tables"), bench("rows")
    a, b, c = rows.BY_NAME["squares"].jobs[::2]  # bf16: also of the row "large"
    records = group(a, 0.98) + group(b, 0.9, 0.5) + group(c, 1.0)
    text, count = tables.short(tables.by_job(records))
    assert count == 2
    lines = text.splitlines()[2:]
    assert len(lines) == 2
    assert "| 0.900 |" in lines[0]
    assert "| 270 |" in lines[0]  # batch_invariant
    assert "| 0.980 |" in lines[1]


def test_core_table_shows_peers_and_why_they_are_missing(bench):
    tables, make_jobs = bench("tables"), bench("jobs").make_jobs
    first, second = make_jobs(SUITES["core"][:2])
    records = group(first, 1.1) + group(second, 1.1)
    base = records[0]
    records.append({**base, "contender": "triton", "tflops": 550.0})
    records.append({**base, "contender": "pallas", "tflops": None, "error": "ValueError: layout kk"})
    text = tables.core(tables.by_job(records))
    head, _, one, two, *rest = text.splitlines()
    assert "| triton | pallas | hopgemm / cuBLAS |" in head
    assert "quack" not in head
    assert "| 600 | 660 | 660 | 550 | cannot | 1.10 |" in one
    assert "| not measured | not measured | 1.10 |" in two
    assert "- pallas, 8192 x 8192 x 8192 `kk`: ValueError: layout kk" in rest


def test_pages_are_filled_between_their_marks(bench, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "docs/speed.md"):
        (tmp_path / page).write_text("before\n<!-- speed: by a script -->\nold\n<!-- /speed -->\nafter\n")
    job = bench("rows").BY_NAME["squares"].jobs[0]
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"header": HEADER, "records": group(job, 0.97)}))
    others = [tmp_path / name for name in ("host.json", "dram.json")]
    times = {"case": "no_grad", "torch_us": 2.0, "hopgemm_us": 1.0}
    others[0].write_text(json.dumps({"header": {"commit": "def"}, "records": [times]}))
    read = {"shape": "8192x8192x8192", "hopgemm_gb": 1.0, "cublas_gb": 2.0}
    others[1].write_text(json.dumps({"header": {}, "records": [read]}))
    for _ in range(2):  # again and again the same
        bench("summary").main([path, *others], tmp_path)
        readme, page = (tmp_path / "README.md").read_text(), (tmp_path / "docs/speed.md").read_text()
        for text in (readme, page):
            assert text.startswith("before\n<!-- speed: by a script -->\n")
            assert text.endswith("<!-- /speed -->\nafter\n")
            assert "old" not in text
            assert "commit abc" in text
            assert "from `r.json`, `host.json` (commit def), `dram.json` (no commit noted)." in text
            assert "| 1 of 6 |" in text
        assert "Slower than cuBLAS: 1 " in readme
        assert "## Slower than cuBLAS: 1" in page
        assert (tmp_path / "docs/speed.png").stat().st_size > 1000


def test_a_page_without_marks_is_refused(bench):
    fill = bench("marks").fill
    for page in ("", "<!-- speed -->\n", "<!-- /speed -->\n<!-- speed -->\n"):
        with pytest.raises(ValueError, match="the page has no lines '<!-- speed -->'"):
            fill(page, "speed", "text")


def test_files_of_two_commits_are_refused(bench, tmp_path):
    job = bench("rows").BY_NAME["squares"].jobs[0]
    paths = [tmp_path / f"{i}.json" for i in range(2)]
    for path, commit in zip(paths, ("abc", "def"), strict=True):
        path.write_text(json.dumps({"header": {**HEADER, "commit": commit}, "records": group(job, 1.0)}))
    with pytest.raises(ValueError, match="commit 'abc'"):
        bench("summary").main(paths, tmp_path)
    with pytest.raises(ValueError, match="no file of speed"):
        bench("summary").main([], tmp_path)


def test_the_pages_of_the_tree_have_their_marks(bench):
    fill = bench("marks").fill
    for name in ("README.md", "docs/speed.md"):
        assert "TEXT" in fill((BENCHMARKS.parent / name).read_text(), "speed", "TEXT")
    assert "TEXT" in fill((BENCHMARKS.parent / "docs/ladder.md").read_text(), "ladder", "TEXT")


@pytest.mark.parametrize("count", [3, 60])
def test_plots_of_few_and_many_shapes(bench, tmp_path, count):
    pytest.importorskip("matplotlib")
    plot = bench("plot")
    jobs = bench("rows").BY_NAME["large"].jobs[:count]
    path = tmp_path / "r.json"
    records = [r for job in jobs for r in group(job, 6.5)]
    path.write_text(json.dumps({"header": HEADER, "records": records}))
    assert plot.draw(path).stat().st_size > 1000
    path.write_text(json.dumps({"header": HEADER, "records": []}))
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.draw(path)
