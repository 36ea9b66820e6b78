"""`hopgemm ladder`: the steps from CUDA cores to the product, each measured beside cuBLAS.

The rungs are in src/ladder; docs/ladder.md tells what each adds. Each climb is a fresh process
(`_ladder_process`): for every contender a rest, then 30 launches. What is printed is the median of the
processes; the `seed` is the ratio to cuBLAS that the step reached where it was first described, on an H100.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from . import _core, _ladder_emulate, _rungs
from ._bench_results import save
from ._ladder_process import HALF_SUMS, LAUNCHES, WARMUP
from ._progress import Bar

_LECTURE = (4096, "bf16", 716.0)
_TUTORIAL = (8192, "fp16", 752.0)
_PRODUCT = ("12", "pingpong")  # rungs that are the library's own kernels
SHAPES = ((4096, "bf16"), (8192, "fp16"))  # what the seeds measured
# (size, dtype, cuBLAS there), TFLOP/s of the step there.
_SEEDS: dict[str, tuple[tuple[tuple[int, str, float], float], ...]] = {
    "0": ((_LECTURE, 32),),
    "1": ((_TUTORIAL, 305),),
    "2": ((_LECTURE, 317), (_TUTORIAL, 540)),
    "4": ((_LECTURE, 660),),
    "6": ((_LECTURE, 631),),
    "7": ((_TUTORIAL, 684),),
    "9n": ((_LECTURE, 734),),
    "10": ((_TUTORIAL, 756),),
    "10n": ((_LECTURE, 758),),
    "11": ((_LECTURE, 764),),
    HALF_SUMS: ((_TUTORIAL, 2e-12 * 8192**3 / 1.37e-3),),
}


@dataclass(frozen=True)
class Climb:
    """What to measure: each of `rungs` (names) at size^3."""

    size: int
    dtype: str
    rungs: tuple[str, ...]
    rest: float = 3.0
    processes: int = 3


def names() -> list[str]:
    """The rungs' names, in order: "0", "1", "2", "3a", ... "12", then the side rungs."""
    return [row["rung"] for row in _rungs.rungs()]


def select(text: str) -> tuple[str, ...]:
    """The rungs that e.g. "0,3-5,9n,side" names; "3" is all variants of rung 3. ValueError for any other."""
    found: list[str] = []
    for part in text.split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            first, last = int(match[1]), int(match[2] or match[1])
            some = [x for x in names() if (n := _number(x)) is not None and first <= n <= last]
        elif part == "side":
            some = [x for x in names() if _number(x) is None]
        else:
            some = [x for x in names() if x == part]
        if not some:
            raise ValueError(f"hopgemm ladder: no rung {part!r}. Take some of {', '.join(names())}")
        found += some
    return tuple(x for x in names() if x in found)


def _number(rung: str) -> int | None:
    match = re.match(r"\d+", rung)
    return int(match[0]) if match else None


def refusal(rung: str, size: int, dtype: str) -> str:
    """Why a rung cannot run size^3 in that dtype; empty where it can."""
    row = next(row for row in _rungs.rungs() if row["rung"] == rung)
    if dtype not in row["dtypes"]:
        return f"takes {' or '.join(row['dtypes'])}, not {dtype}"
    if any(size % step for step in row["steps"]):
        m, n, k = row["steps"]
        return f"takes M in multiples of {m}, N of {n}, K of {k}, not {size}"
    return ""


def seed_ratio(rung: str, size: int, dtype: str) -> float | None:
    """The step's ratio to cuBLAS where it was first described, at that shape and dtype; None: no figure."""
    for (seed_size, seed_dtype, cublas), tflops in _SEEDS.get(rung, ()):
        if (seed_size, seed_dtype) == (size, dtype):
            return tflops / cublas
    return None


def measure(climb: Climb, report: Callable[[float, str], None]) -> list[dict[str, Any]]:
    """Measures a climb on the current GPU.

    Args:
      climb: its rungs must all be able to run (`refusal`).
      report: told the part that is done and what is being measured.

    Returns:
      A record for each rung: `rung, name, shape, dtype, tflops, ratio_to_cublas, seed_ratio, correct,
      cublas_tflops, mean_error, max_error, processes`. Errors are in standard deviations of the result.

    Raises:
      RuntimeError: a process failed; the message is what it said.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    steps = climb.processes * (1 + len(climb.rungs))
    for process in range(climb.processes):
        for i, row in enumerate(_fresh_process(climb)):
            report((process * (1 + len(climb.rungs)) + i + 1) / steps, f"{climb.size}^3, rung {row['rung']}")
            rows.setdefault(row["rung"], []).append(row)
    cublas = median(row["tflops"] for row in rows.pop("cublas"))
    ideas = {row["rung"]: row["name"] for row in _rungs.rungs()}
    return [
        {
            "rung": rung,
            "name": ideas[rung],
            "shape": "x".join([str(climb.size)] * 3),
            "dtype": climb.dtype,
            "tflops": (tflops := median(row["tflops"] for row in found)),
            "ratio_to_cublas": tflops / cublas,
            "seed_ratio": seed_ratio(rung, climb.size, climb.dtype),
            "correct": all(row["correct"] for row in found),
            "cublas_tflops": cublas,
            "mean_error": max(row["mean_error"] for row in found),
            "max_error": max(row["max_error"] for row in found),
            "processes": [row["tflops"] for row in found],
        }
        for rung, found in rows.items()
    ]


def _fresh_process(climb: Climb) -> Iterator[dict[str, Any]]:
    job = {"size": climb.size, "dtype": climb.dtype, "rungs": climb.rungs, "rest": climb.rest}
    code = f"from {__package__}._ladder_process import main; main()"
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(job)], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"hopgemm ladder: the measuring process failed:\n{errors.read()[-2000:]}")


def header(climbs: Sequence[Climb]) -> dict[str, Any]:
    """Where and how the records were measured."""
    gpu = _core.device_info(0)
    return {
        "commit": _core.commit,
        "gpu": gpu["name"],
        "sm_count": gpu["sm_count"],
        "driver_version": gpu["driver_version"],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "protocol": {
            "rest_s": climbs[0].rest,
            "warmup_launches": WARMUP,
            "launches": LAUNCHES,
            "processes": climbs[0].processes,
            "operands": "uniform in +-0.5 / sqrt(K), A (M, K), B (N, K)",
            "baseline": "torch.mm",
        },
    }


def render(records: Sequence[dict[str, Any]]) -> str:
    """The records of one climb as a table."""
    first = records[0]
    lines = [
        f"{first['shape']}, {first['dtype']}: cuBLAS {first['cublas_tflops']:.0f} TFLOP/s",
        f"{'rung':8}  {'what':56}  {'TFLOP/s':>7}  {'of cuBLAS':>9}  {'seed':>5}  correct",
    ]
    for x in records:
        seed = "-" if x["seed_ratio"] is None else f"{x['seed_ratio']:.3f}"
        note = f"  (mean error {x['mean_error']:.4f} standard deviations)" if x["rung"] == HALF_SUMS else ""
        lines.append(
            f"{x['rung']:8}  {x['name']:56}  {x['tflops']:7.1f}  {x['ratio_to_cublas']:9.3f}  {seed:>5}  "
            f"{'yes' if x['correct'] else 'NO'}{note}"
        )
    return "\n".join(lines)


def draw(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the climb: a bar a rung, cuBLAS as a line, the seeds' ratios as marks. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    climbs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        climbs.setdefault((record["shape"], record["dtype"]), []).append(record)
    figure, axes = pyplot.subplots(
        len(climbs), 1, figsize=(11, 3.2 * len(climbs)), squeeze=False, layout="constrained"
    )
    for axis, ((shape, dtype), rows) in zip(axes[:, 0], climbs.items(), strict=True):
        cublas = rows[0]["cublas_tflops"]
        at = range(len(rows))
        colors = ["#1f77b4" if x["correct"] else "#c03030" for x in rows]
        axis.bar(at, [x["tflops"] for x in rows], color=colors)
        axis.axhline(cublas, color="black", linewidth=0.8, label=f"cuBLAS {cublas:.0f}")
        seeds = [(i, x["seed_ratio"] * cublas) for i, x in enumerate(rows) if x["seed_ratio"] is not None]
        if seeds:
            axis.plot(*zip(*seeds, strict=True), "_", color="#d08770", markersize=18, label="seed's ratio")
        for i, x in enumerate(rows):
            axis.annotate(f"{x['tflops']:.0f}", (i, x["tflops"]), ha="center", va="bottom", fontsize=7)
        axis.set_xticks(at, [x["rung"] for x in rows], fontsize=8)
        axis.set_ylabel("TFLOP/s")
        axis.set_title(f"{shape}, {dtype}", fontsize=10)
        axis.margins(y=0.12)
        axis.legend(frameon=False, loc="upper left", fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hopgemm ladder`."""
    parser.add_argument("--size", type=int, metavar="N", help="N x N x N (4096 in bf16, then 8192 in fp16)")
    parser.add_argument(
        "--dtype", choices=("bf16", "fp16"), help="of the operands (bf16 where --size is given)"
    )
    parser.add_argument("--rungs", metavar="LIST", help='such as "0,3-5,9n,side" (all)')
    parser.add_argument("--rest", type=float, default=3.0, metavar="S", help="seconds before each timing (3)")
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="whose median is taken (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the climb there, such as climb.png")
    parser.add_argument(
        "--emulate",
        type=int,
        metavar="SEEDS",
        help="no GPU needed: check what is written as roles on the emulated machine, SEEDS schedules each",
    )


def command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs what add_arguments() parsed.

    Exit status 0: all done and right; 1: no GPU, or a rung is wrong or failed; 2: the command line is wrong.
    """
    try:
        chosen = select(options.rungs) if options.rungs else tuple(names())
        if options.emulate is not None:
            return _emulate(chosen, options.emulate)
        climbs = _climbs(options, chosen)
    except ValueError as error:
        parser.error(str(error))
    if not _core.device_count():
        emulated = [rung for rung in chosen if rung in _ladder_emulate.rungs()]
        print(
            f"error: hopgemm ladder: no GPU or no driver; rungs {', '.join(chosen)} cannot run. On the "
            f"emulated machine, with --emulate 4, these can: {', '.join(emulated) or 'none'}",
            file=sys.stderr,
        )
        return 1
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        print("error: hopgemm ladder: --plot needs matplotlib: pip install 'hopgemm[bench]'", file=sys.stderr)
        return 1
    try:
        records = _measure_all(climbs)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        save(options.json, {"header": header(climbs), "records": records})
    if options.plot:
        draw(records, options.plot)
    return 0 if records and all(x["correct"] for x in records) else 1


def _climbs(options: argparse.Namespace, chosen: tuple[str, ...]) -> list[Climb]:
    """ValueError for a size, a rest or a number of processes that is out of range."""
    for name, value, least in (("--size", options.size, 1), ("--processes", options.processes, 1)):
        if value is not None and value < least:
            raise ValueError(f"hopgemm ladder: {name} is {value}; it must be {least} or more")
    if not 0 <= options.rest < 1000:
        raise ValueError(f"hopgemm ladder: --rest is {options.rest}; it must be 0 to 1000 seconds")
    if options.size is not None:
        shapes: Sequence[tuple[int, str]] = ((options.size, options.dtype or "bf16"),)
    else:
        shapes = [(size, dtype) for size, dtype in SHAPES if options.dtype in (None, dtype)]
    return [Climb(size, dtype, chosen, options.rest, options.processes) for size, dtype in shapes]


def _measure_all(climbs: Sequence[Climb]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    with Bar() as bar:
        for i, climb in enumerate(climbs):
            refusals = {rung: refusal(rung, climb.size, climb.dtype) for rung in climb.rungs}
            able = tuple(rung for rung, reason in refusals.items() if not reason)
            if able:
                done, whole = i, len(climbs)
                found = measure(
                    replace(climb, rungs=able), lambda part, text: bar.update((done + part) / whole, text)
                )
                bar.print(render(found))
                records += found
            for rung, reason in refusals.items():
                if reason:
                    bar.print(f"{rung:8}  refused: {reason}")
            bar.print("")
    return records


def _emulate(chosen: Sequence[str], seeds: int) -> int:
    if seeds < 1:
        raise ValueError(f"hopgemm ladder: --emulate is {seeds}; it must be 1 or more")
    good = True
    for row in _rungs.rungs():
        rung = row["rung"]
        if rung not in chosen:
            continue
        if rung not in _ladder_emulate.rungs():
            elsewhere = "; `hopgemm verify` does that" if rung in _PRODUCT else ""
            print(f"{rung:8}  {row['name']:56}  not emulated{elsewhere}")
            continue
        failures = (
            _ladder_emulate.check(rung, row["steps"], dtype, seed)
            for seed in range(seeds)
            for dtype in row["dtypes"]
        )
        failure = next(filter(None, failures), "")
        good = good and not failure
        print(f"{rung:8}  {row['name']:56}  {'FAILED: ' + failure if failure else 'ok'}", flush=True)
    return 0 if good else 1
