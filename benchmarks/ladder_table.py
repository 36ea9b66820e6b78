"""Writes the figures of a climb into docs/ladder.md, between its two marks.

python -m hopgemm ladder --json benchmarks/results/DATE-h200-ladder.json
python benchmarks/ladder_table.py benchmarks/results/DATE-h200-ladder.json docs/ladder.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from marks import fill

from hopgemm._bench_results import load


def table(data: dict[str, Any]) -> str:
    """The records as Markdown: a row a rung, three columns a shape."""
    records = data["records"]
    shapes = list(dict.fromkeys((x["shape"], x["dtype"]) for x in records))
    by_rung: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for x in records:
        by_rung.setdefault(x["rung"], {})[x["shape"], x["dtype"]] = x
    cublas = {(x["shape"], x["dtype"]): x["cublas_tflops"] for x in records}
    columns = [f"{s} {d} | of cuBLAS ({cublas[s, d]:.0f}) | seed" for s, d in shapes]
    lines = [f"| rung | idea | {' | '.join(columns)} |", "|---|---|" + "---|---|---|" * len(shapes)]
    for rung, found in by_rung.items():
        cells = [_cells(found.get(shape)) for shape in shapes]
        name = next(iter(found.values()))["name"]
        lines.append(f"| {rung} | {name} | {' | '.join(cells)} |")
    header, protocol = data["header"], data["header"]["protocol"]
    lines += [
        "",
        f"{header['gpu']}, commit {header['commit']}, {header['date'][:10]}; TFLOP/s, "
        f"rest {protocol['rest_s']:g} s, {protocol['launches']} launches, median of {protocol['processes']}.",
    ]
    errors = {x["rung"]: x["mean_error"] for x in records if x["dtype"] == "fp16"}
    if "fp16acc" in errors and "11" in errors:
        lines += [
            "",
            f"Mean error in standard deviations of the result: fp16 sums {errors['fp16acc']:.2g}, fp32 sums "
            f"{errors['11']:.2g}.",
        ]
    return "\n".join(lines)


def _cells(record: dict[str, Any] | None) -> str:
    if record is None:
        return "| |"
    seed = "" if record["seed_ratio"] is None else f"{record['seed_ratio']:.2f}"
    wrong = "" if record["correct"] else " WRONG"
    return f"{record['tflops']:.0f}{wrong} | {record['ratio_to_cublas']:.2f} | {seed}"


if __name__ == "__main__":
    _, results, page = sys.argv
    Path(page).write_text(fill(Path(page).read_text(), "ladder", table(load(Path(results)))))
