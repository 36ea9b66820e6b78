"""Draws a file of results as a PNG beside it: TFLOP/s of every contender, and hopgemm's ratio to cuBLAS.

python benchmarks/plot.py benchmarks/results/FILE.json

A few shapes become bars; more become points over the size of the product.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hopgemm._bench_case import LAYOUTS, flops
from hopgemm._bench_results import load
from hopgemm._shapes import parse_shape

_MOST_BARS = 40
_COLORS = {
    "cublas": "#9aa0a6",
    "hopgemm": "#1f77b4",
    "batch_invariant": "#17becf",
    "triton": "#9467bd",
    "pallas": "#8c564b",
    "quack": "#bcbd22",
}
_LAYOUT_COLORS = dict(
    zip(LAYOUTS, ("#1f77b4", "#2ca02c", "#9467bd", "#d08770", "#17becf", "#8c564b"), strict=True)
)
_MARKERS = {"sustained": "o", "single": "x", "burst": "s"}
_RATIOS = (0.6, 1.6)  # drawn; what lies beyond stands at the edge, with its number


def draw(path: Path) -> Path:
    """Draws `path` and returns the picture's path. ValueError where there is nothing to draw."""
    data, picture = load(path), path.with_suffix(".png")
    rows = group(data["records"])
    if not rows:
        raise ValueError(f"{path}: no record without an error, nothing to draw")
    if len(rows) > _MOST_BARS:
        overview(data, picture)
    else:
        _bars(rows, _title(data["header"]), picture)
    return picture


def overview(data: dict[str, Any], picture: Path) -> None:
    """Every shape of some results as a point: its ratio to cuBLAS over its size, and TFLOP/s of both."""
    figure, (speed, ratio) = _axes(9.0)
    seen: set[str] = set()
    for (shape, _), row in group(data["records"]).items():
        if not {"cublas", "hopgemm"} <= row.keys():
            continue
        ours = row["hopgemm"]
        size = flops(parse_shape(shape), ours["layout"])
        for name in ("cublas", "hopgemm"):
            label = name if name not in seen else None
            seen.add(name)
            speed.scatter(size, row[name]["tflops"], s=10, color=_COLORS[name], label=label)
        kind = f"{ours['layout']} {ours['protocol']}"
        value = min(max(ours["ratio_to_cublas"], _RATIOS[0]), _RATIOS[1])
        ratio.scatter(
            size,
            value,
            s=16,
            marker=_MARKERS[ours["protocol"]],
            linewidths=1,
            color=_LAYOUT_COLORS[ours["layout"]],
            label=kind if kind not in seen else None,
        )
        if value != ours["ratio_to_cublas"]:
            ratio.annotate(f" {ours['ratio_to_cublas']:.2f}", (size, value), va="center", fontsize=7)
        seen.add(kind)
    ratio.axhline(1.0, color="black", linewidth=0.8)
    ratio.grid(axis="y", linewidth=0.3)
    ratio.set_xscale("log")
    ratio.set_xlabel("floating-point operations")
    kinds = ratio.get_legend_handles_labels()
    figure.legend(*kinds, frameon=False, fontsize=8, ncols=6, loc="outside lower center")
    _finish(figure, speed, ratio, _title(data["header"]), picture)


def _bars(rows: dict[tuple[str, str], dict[str, dict[str, Any]]], title: str, picture: Path) -> None:
    figure, (speed, ratio) = _axes(max(7.0, 0.55 * len(rows) + 2))
    positions = range(len(rows))
    names = [name for name in _COLORS if any(name in row for row in rows.values())]
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        values = [row.get(name, {}).get("tflops", 0.0) for row in rows.values()]
        places = [x + (i - (len(names) - 1) / 2) * width for x in positions]
        speed.bar(places, values, width, label=name, color=_COLORS[name])
    ratios = [row.get("hopgemm", {}).get("ratio_to_cublas", 0.0) for row in rows.values()]
    ratio.bar(positions, ratios, 0.5, color=["#1f77b4" if value >= 1 else "#d08770" for value in ratios])
    ratio.axhline(1.0, color="black", linewidth=0.8)
    for x, value in zip(positions, ratios, strict=True):
        ratio.annotate(f"{value:.2f}", (x, value), ha="center", va="bottom", fontsize=7)
    ratio.margins(y=0.15)
    ratio.set_xticks(positions, ["\n".join(key) for key in rows], rotation=60, ha="right", fontsize=7)
    _finish(figure, speed, ratio, title, picture)


def _axes(width: float) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(2, 1, figsize=(width, 7), sharex=True, height_ratios=(1, 1), layout="constrained")


def _finish(figure: Any, speed: Any, ratio: Any, title: str, picture: Path) -> None:
    from matplotlib import pyplot

    speed.set_ylabel("TFLOP/s")
    speed.legend(frameon=False)
    speed.set_title(title)
    ratio.set_ylabel("hopgemm / cuBLAS")
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)


def _title(header: dict[str, Any]) -> str:
    return f"{header.get('gpu')}, driver {header.get('driver')}, commit {str(header.get('commit'))[:12]}"


def group(records: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """(shape, what else tells it apart) -> contender -> its record; of several configurations the fastest."""
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for record in records:
        if record["error"] is not None:
            continue
        row = rows.setdefault(
            (record["shape"], f"{record['dtype']} {record['layout']} {record['protocol']}"), {}
        )
        if record["tflops"] > row.get(record["contender"], {}).get("tflops", 0.0):
            row[record["contender"]] = record
    return rows


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(draw(Path(name)))
