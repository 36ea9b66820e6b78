"""Measures into benchmarks/results/, merges parts, and draws.

    python benchmarks/run.py --suite core                               the options of `hopgemm bench`
    python benchmarks/run.py merge part1.json part2.json -o all.json

The file is results/COMMIT_SUITE_DTYPE_LAYOUT.json unless --json names another.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import plot

from hopgemm import _core
from hopgemm._bench_results import merge, save
from hopgemm._cli import main as hopgemm_main

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str]) -> int:
    """Runs `merge` or a measurement; returns the exit status."""
    if arguments[:1] == ["merge"]:
        return run_merge(arguments[1:])
    known, _ = _bench_parser().parse_known_args(arguments)
    path = known.json or RESULTS / f"{_core.commit[:12]}_{known.suite}_{known.dtype}_{known.layout}.json"
    rest = arguments if known.json else [*arguments, "--json", str(path)]
    status = hopgemm_main(["bench", *rest])
    if path.exists():
        plot.draw(path)
    return status


def run_merge(arguments: list[str]) -> int:
    """Parts of one commit and one kind of machine become one file, with its plot."""
    parser = argparse.ArgumentParser(prog="run.py merge", description=run_merge.__doc__)
    parser.add_argument("parts", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        save(options.output, merge(options.parts))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    plot.draw(options.output)
    return 0


def _bench_parser() -> argparse.ArgumentParser:
    """Only what the file's name needs; `hopgemm bench` checks everything."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--suite", default="core")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="kk")
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
