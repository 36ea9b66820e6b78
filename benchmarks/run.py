"""Measures into benchmarks/results/ on one or more GPUs of one machine, merges parts, and draws.

    python benchmarks/run.py --gpus 4 --rows all --budget-s 560        the rows of docs/speed.md, in order
    python benchmarks/run.py --suite core --layout kk,kn --peers all   other libraries beside us
    python benchmarks/run.py --suite llm --min-m 512 --estimate        only says how long it would take
    python benchmarks/run.py merge part1.json part2.json -o all.json

The file is results/COMMIT_NAME.json unless --json names another; what it already has is not measured again.
`hopgemm bench` measures one layout on one GPU, also through JAX and with chosen kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import peers
import plot
from jobs import Job, in_order, make_jobs, total_s
from pool import Pool
from rows import BY_NAME

from hopgemm import _core
from hopgemm._bench_case import LAYOUTS, TRAINING_LAYOUTS
from hopgemm._bench_results import merge, save
from hopgemm._cli import positive, shapes
from hopgemm._shapes import SUITES

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str]) -> int:
    """Runs `merge` or a measurement; returns the exit status."""
    if arguments[:1] == ["merge"]:
        return run_merge(arguments[1:])
    parser = _parser()
    options = parser.parse_args(arguments)
    groups = _groups(options)
    path = options.json or RESULTS / f"{_core.commit[:12]}_{_name(options)}.json"
    parts = [path.with_suffix(f".gpu{i}.json") for i in range(options.gpus)]
    try:
        done = _recorded(_written(path))
    except ValueError as error:
        parser.error(str(error))
    groups = [[job for job in group if not _needs(job) <= done.get(job.key, set())] for group in groups]
    jobs = in_order(groups, options.gpus, options.budget_s)
    print(f"{len(jobs)} shapes to measure; {total_s(jobs, options.gpus):.0f} s expected", flush=True)
    if options.estimate or not jobs:
        return 0
    if _core.device_count() < options.gpus:
        parser.error(f"--gpus {options.gpus}: this machine has {_core.device_count()}")
    pool = Pool(jobs, parts, options.budget_s, lambda line: print(line, flush=True))
    ok = pool.run()
    print(f"{len(pool.left)} shapes left out" if pool.left else "all measured")
    written = _written(path)
    if written:
        save(path, merge(written))
        for part in written[1:] if written[0] == path else written:
            part.unlink()
        _draw(path)
        print(path)
    return 0 if ok else 1


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
    _draw(options.output)
    return 0


def _draw(path: Path) -> None:
    """A machine that measures needs no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no picture, since matplotlib is not installed: python benchmarks/plot.py {path}")
        return
    try:
        plot.draw(path)
    except ValueError as error:  # nothing but failures
        print(error)


def _written(path: Path) -> list[Path]:
    """The file, where it is there, and the parts of it that an interrupted run has left."""
    return [path] * path.exists() + sorted(path.parent.glob(f"{path.stem}.gpu*.json"))


def _groups(options: argparse.Namespace) -> list[list[Job]]:
    """The jobs that were asked for, in groups of falling importance."""
    if options.rows:
        groups = [list(BY_NAME[name].jobs) for name in options.rows]
    else:
        is_training = options.suite == "training" and not options.shapes
        layouts = options.layout or (TRAINING_LAYOUTS if is_training else ("kk",))
        chosen = options.shapes or SUITES[options.suite]
        groups = [make_jobs(chosen, options.dtype, layouts, options.protocol, options.peers)]
    return [[j for j in group if options.min_m <= j.shape[0] <= options.max_m] for group in groups]


def _name(options: argparse.Namespace) -> str:
    """Of the file, after the commit."""
    if options.rows:
        return "-".join(options.rows)
    what = "shapes" if options.shapes else options.suite
    layouts = options.layout or (() if what == "training" else ("kk",))
    return "_".join((what, *options.dtype, *layouts))


def _needs(job: Job) -> set[str]:
    return {"cublas", "hopgemm", "batch_invariant", *job.peers}


def _recorded(paths: list[Path]) -> dict[tuple[str, ...], set[str]]:
    """A job's key -> the contenders recorded for it; a peer that could not run counts as well.

    ValueError where a file is of another commit.
    """
    if not paths:
        return {}
    data = merge(paths)
    if data["header"]["commit"] != _core.commit:
        raise ValueError(
            f"{paths[0]} is of commit {data['header']['commit']}, this is {_core.commit}. Name another file"
        )
    recorded: dict[tuple[str, ...], set[str]] = {}
    for record in data["records"]:
        if record["requested"] == "" and (record["error"] is None or record["contender"] in peers.NAMES):
            key = tuple(record[name] for name in ("shape", "dtype", "layout", "protocol"))
            recorded.setdefault(key, set()).add(record["contender"])
    return recorded


def _list_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """An argument that names some of these, separated by commas, or "all"."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(known) if text == "all" else tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}: must be of {', '.join(known)}, or all")
        return names

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rows", type=_list_of(tuple(BY_NAME)), metavar="NAME[,...]", help=", ".join(BY_NAME))
    which.add_argument("--suite", choices=tuple(SUITES), default="core")
    which.add_argument("--shapes", type=shapes, metavar="MxNxK[,...]")
    parser.add_argument("--min-m", type=positive, default=1)
    parser.add_argument("--max-m", type=positive, default=math.inf)
    parser.add_argument("--dtype", type=_list_of(("bf16", "fp16")), default=("bf16",))
    parser.add_argument("--layout", type=_list_of(LAYOUTS), help="kk; the suite training has its own two")
    parser.add_argument("--protocol", choices=("auto", "sustained", "burst", "single"), default="auto")
    parser.add_argument("--peers", type=_list_of(peers.NAMES), default=(), help="on the core suite's shapes")
    parser.add_argument("--gpus", type=positive, default=1)
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin nothing that would end later")
    parser.add_argument("--estimate", action="store_true", help="measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
