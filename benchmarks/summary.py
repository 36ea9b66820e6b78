"""Writes the figures of speed into README.md and docs/speed.md, and draws docs/speed.png.

    python benchmarks/summary.py benchmarks/results/FILE.json...

Takes files of run.py and of `hopgemm bench` (of one commit on one kind of machine), of host_time.py, and of
DRAM reads by ncu (`hopgemm_gb`, `cublas_gb` a shape). Later files win.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import plot
import tables
from marks import fill

from hopgemm._bench_results import load, merge

ROOT = Path(__file__).resolve().parents[1]


def main(paths: list[Path], root: Path = ROOT) -> None:
    """Fills both pages below `root`. ValueError where files do not belong together or a page has no marks."""
    speed, host, dram = [], [], []
    for path in paths:
        first = next(iter(load(path)["records"]), {})
        (host if "case" in first else dram if "hopgemm_gb" in first else speed).append(path)
    if not speed:
        raise ValueError("no file of speed among them: name one that run.py wrote")
    data = merge(speed)
    records = tables.by_job(data["records"])
    small = [[r for path in group for r in load(path)["records"]] for group in (host, dram)]
    picture = root / "docs" / "speed.png"
    plot.overview(data, picture)
    aims = tables.aims(records, *small)
    listed, count = tables.short(records)
    where = _where(data["header"], paths)
    _write(
        root / "README.md",
        [
            *(aims, "", where, "", _counted(count), "", "![Ratio to cuBLAS](docs/speed.png)", ""),
            *("TFLOP/s on the core suite:", "", tables.core(records, ["kk"])),
        ],
    )
    _write(
        root / "docs" / "speed.md",
        [
            *("## The aims", "", aims, "", where, "", "![Ratio to cuBLAS](speed.png)", ""),
            *("## The core suite, TFLOP/s", "", tables.core(records), ""),
            *(f"## Slower than cuBLAS: {count}", "", listed, ""),
            *("## Not measured", "", tables.missing(records)),
        ],
    )


def _write(page: Path, lines: list[str]) -> None:
    page.write_text(fill(page.read_text(), "speed", "\n".join(["", *lines, ""])))


def _where(header: dict[str, Any], paths: list[Path]) -> str:
    limit = header.get("power_limit_watts")
    board = f"{header['gpu']}" + (f" ({limit:.0f} W)" if limit else "")
    return (
        f"{board}, driver {header['driver']}, PyTorch {header['torch']}, commit {header['commit'][:12]}, "
        f"{header['date'][:10]}; from {', '.join(_named(path, header['commit']) for path in paths)}."
    )


def _named(path: Path, commit: str) -> str:
    """The file, and its commit where that is another one."""
    own = load(path)["header"].get("commit")
    return f"`{path.name}`" + (
        "" if own == commit else f" (commit {own[:12]})" if own else " (no commit noted)"
    )


def _counted(count: int) -> str:
    return (
        f"Slower than cuBLAS: {count} of what was measured. [docs/speed.md](docs/speed.md) lists each, "
        "and what is not measured."
    )


if __name__ == "__main__":
    try:
        main([Path(name) for name in sys.argv[1:]])
    except (ValueError, json.JSONDecodeError) as error:
        raise SystemExit(f"summary.py: {error}") from None
