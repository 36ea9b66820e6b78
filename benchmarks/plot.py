"""Draws a file of results as a PNG beside it: TFLOP/s of every contender, and hopgemm's ratio to cuBLAS.

python benchmarks/plot.py benchmarks/results/FILE.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hopgemm._bench_results import load


def draw(path: Path) -> Path:
    """Draws `path` and returns the picture's path. ValueError where there is nothing to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    data = load(path)
    rows = group(data["records"])
    if not rows:
        raise ValueError(f"{path}: no record without an error, nothing to draw")
    figure, (speed, ratio) = pyplot.subplots(
        2,
        1,
        figsize=(max(7.0, 0.55 * len(rows) + 2), 7),
        sharex=True,
        height_ratios=(2, 1),
        layout="constrained",
    )
    positions = range(len(rows))
    for offset, (name, color) in zip(
        (-0.2, 0.2), (("cublas", "#9aa0a6"), ("hopgemm", "#1f77b4")), strict=True
    ):
        values = [row.get(name, {}).get("tflops", 0.0) for row in rows.values()]
        speed.bar([x + offset for x in positions], values, 0.4, label=name, color=color)
    ratios = [row.get("hopgemm", {}).get("ratio_to_cublas", 0.0) for row in rows.values()]
    ratio.bar(positions, ratios, 0.5, color=["#1f77b4" if value >= 1 else "#d08770" for value in ratios])
    ratio.axhline(1.0, color="black", linewidth=0.8)
    for x, value in zip(positions, ratios, strict=True):
        ratio.annotate(f"{value:.2f}", (x, value), ha="center", va="bottom", fontsize=7)
    speed.set_ylabel("TFLOP/s")
    speed.legend(frameon=False)
    ratio.margins(y=0.15)
    ratio.set_ylabel("hopgemm / cuBLAS")
    ratio.set_xticks(positions, ["\n".join(key) for key in rows], rotation=60, ha="right", fontsize=7)
    header = data["header"]
    speed.set_title(
        f"{header.get('gpu')}, driver {header.get('driver')}, commit {str(header.get('commit'))[:12]}"
    )
    picture = path.with_suffix(".png")
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)
    return picture


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
