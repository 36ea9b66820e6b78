"""The measured shapes, and the scripts of benchmarks/ where the tree is at hand."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from hopgemm._shapes import BIG_SQUARES, SUITES, format_shape, parse_shape, select

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def test_what_the_suites_promise():
    assert len(SUITES["core"]) == 12
    assert {(s, s, s) for s in (512, 1024, 2048, 4096, 8192, 16384)} <= set(SUITES["squares"])
    assert set(BIG_SQUARES) <= set(SUITES["squares"])
    layers = {
        (6144, 4096),
        (28672, 4096),
        (4096, 14336),
        (2112, 7168),
        (7168, 16384),
        (129280, 7168),
        (128256, 4096),
    }
    assert {(m, *layer) for m in ROWS for layer in layers} <= set(SUITES["llm"])
    assert any(n == 50257 for _, n, _ in SUITES["core"])
    assert sum(m < 512 for m, _, _ in SUITES["core"]) >= 3
    for suite in SUITES.values():
        assert len(set(suite)) == len(suite)
        assert set(suite) <= set(SUITES["all"])
        assert all(len(shape) == 3 and min(shape) > 0 for shape in suite)


def test_parts_deal_everything_once():
    parts = [select("llm", (i, 7)) for i in range(1, 8)]
    assert sorted(shape for part in parts for shape in part) == sorted(SUITES["llm"])
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("part", [(0, 2), (3, 2), (1, 0)])
def test_wrong_part(part):
    with pytest.raises(ValueError, match="must be i/n"):
        select("core", part)


def test_shape_text():
    for shape in SUITES["all"]:
        assert parse_shape(format_shape(shape)) == shape
    for text in ("", "4096", "4096x4096", "1x2x3x4", "0x1x2", "-1x2x3", "axbxc", "1x2x"):
        with pytest.raises(ValueError, match="must be MxNxK"):
            parse_shape(text)


def _script(name, monkeypatch):
    if not (BENCHMARKS / name).is_file():
        pytest.skip("benchmarks/ is not beside the tests")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return runpy.run_path(str(BENCHMARKS / name))


def _record(shape, contender, tflops, **more):
    base = {
        "dtype": "bf16",
        "layout": "kk",
        "protocol": "single",
        "framework": "torch",
        "requested": "",
        "error": None,
    }
    return {
        **base,
        "shape": shape,
        "contender": contender,
        "tflops": tflops,
        "ratio_to_cublas": tflops / 600,
        **more,
    }


def test_merging_and_plotting_parts(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    run = _script("run.py", monkeypatch)
    header = {"commit": "abc", "gpu": "NVIDIA H200", "driver": "580"}
    for i, shape in enumerate(("64x64x64", "128x64x64")):
        records = [_record(shape, "cublas", 600.0), _record(shape, "hopgemm", 630.0)]
        (tmp_path / f"{i}.json").write_text(json.dumps({"header": header, "records": records}))
    out = tmp_path / "all.json"
    assert run["main"](["merge", str(tmp_path / "0.json"), str(tmp_path / "1.json"), "-o", str(out)]) == 0
    assert len(json.loads(out.read_text())["records"]) == 4
    assert out.with_suffix(".png").stat().st_size > 1000


def test_a_plot_takes_the_fastest_configuration(monkeypatch):
    group = _script("plot.py", monkeypatch)["group"]
    records = [
        _record("64x64x64", "hopgemm", 500.0, requested="a"),
        _record("64x64x64", "hopgemm", 700.0, requested="b"),
        _record("64x64x64", "hopgemm", 900.0, requested="c", error="cannot"),
        _record("64x64x64", "cublas", 600.0),
    ]
    ((row),) = group(records).values()
    assert (row["hopgemm"]["requested"], row["cublas"]["tflops"]) == ("b", 600.0)
