"""Records of results as Markdown: the rows of `rows.py`, the core suite beside peers, what falls short.

A value that is not there is "not measured", never left out: a row says how many of its shapes it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

import peers
from jobs import Job
from rows import READ_ROOF_AIM, ROWS, WEIGHTS_OVER_BYTES, Row

from hopgemm._shapes import SUITES, format_shape, parse_shape

Key = tuple[str, ...]
Records = dict[Key, dict[str, dict[str, Any]]]  # a job's key -> contender -> its record
MISSING = "not measured"
NOT_UNDER = 1.00  # of cuBLAS: what is slower is listed


def by_job(records: Sequence[dict[str, Any]]) -> Records:
    """PyTorch's records of hopgemm's own choice (no pinned kernels), failures included."""
    found: Records = {}
    for record in records:
        if record["framework"] == "torch" and record["requested"] == "":
            key = tuple(record[name] for name in ("shape", "dtype", "layout", "protocol"))
            found.setdefault(key, {})[record["contender"]] = record
    return found


def is_good(record: dict[str, Any] | None) -> bool:
    """Was it timed, and was its result right?"""
    return record is not None and record["error"] is None and record["correct"]


@dataclass(frozen=True)
class Summary:
    """What was measured of a row; a shape whose result was wrong counts as not measured."""

    row: Row
    found: dict[Job, dict[str, dict[str, Any]]]

    @property
    def ratios(self) -> dict[Job, float]:
        """Of hopgemm to cuBLAS."""
        return {job: group["hopgemm"]["ratio_to_cublas"] for job, group in self.found.items()}

    @property
    def is_complete(self) -> bool:
        """Is every shape there?"""
        return len(self.found) == len(self.row.jobs)

    @property
    def is_reached(self) -> bool:
        """Are all shapes there, and both aims met?"""
        ratios = self.ratios.values()
        least = self.row.least
        return (
            self.is_complete
            and geometric_mean(ratios) >= self.row.geomean
            and (least is None or min(ratios) >= least)
        )

    def cells(self) -> list[str]:
        """Aim, shapes measured, their geometric mean and median, the slowest, how many are under 1.00, is the
        row reached, and `batch_invariant`."""
        aim = f"{self.row.geomean:.2f}" + (
            "" if self.row.least is None else f", none under {self.row.least:.2f}"
        )
        count = f"{len(self.found)} of {len(self.row.jobs)}"
        if not self.found:
            return [aim, count, MISSING, MISSING, MISSING, MISSING, "no", MISSING]
        worst = min(self.ratios, key=self.ratios.__getitem__)
        under = sum(ratio < NOT_UNDER for ratio in self.ratios.values())
        return [
            aim,
            count,
            f"{geometric_mean(self.ratios.values()):.3f}",
            f"{median(self.ratios.values()):.3f}",
            f"{self.ratios[worst]:.3f} ({_name(worst)})",
            str(under),
            "yes" if self.is_reached else "no",
            _invariant(self.found.values()),
        ]


def summarize(records: Records, row: Row) -> Summary:
    """The shapes of a row of which hopgemm and cuBLAS are there and right."""
    groups = {job: records.get(job.key, {}) for job in row.jobs}
    good = {job: g for job, g in groups.items() if is_good(g.get("hopgemm")) and is_good(g.get("cublas"))}
    return Summary(row, good)


def aims(records: Records, host: Sequence[dict[str, Any]], dram: Sequence[dict[str, Any]]) -> str:
    """The table of aims. host: records of host_time.py; dram: of ncu, in GB."""
    lines = [
        "| what | protocol | aim | measured | geomean of those | median | slowest | under 1.00 | reached "
        "| `batch_invariant` |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        lines.append(f"| {row.title} | {row.how} | {' | '.join(summarize(records, row).cells())} |")
    lines += [_read_roof(records), _host(host), _dram(dram)]
    return "\n".join(lines)


def core(records: Records, layouts: Sequence[str] = ("kk", "kn", "mk", "mn")) -> str:
    """TFLOP/s on the core suite, where it was measured, with whoever was measured beside us, and why not."""
    groups = [group for layout in layouts for group in _core_groups(records, layout)]
    others = [name for name in peers.NAMES if any(name in group for _, group in groups)]
    names = ["cublas", "hopgemm", "batch_invariant", *others]
    lines = [
        f"| M x N x K | layout | protocol | {' | '.join(names)} | hopgemm / cuBLAS |",
        "|---|---|---|" + "---|" * (len(names) + 1),
    ]
    for (shape, _, layout, protocol), group in groups:
        cells = [_tflops(group.get(name)) for name in names]
        ratio = f"{group['hopgemm']['ratio_to_cublas']:.2f}" if is_good(group.get("hopgemm")) else MISSING
        lines.append(f"| {_spaced(shape)} | `{layout}` | {protocol} | {' | '.join(cells)} | {ratio} |")
    reasons = {
        f"{name}, {_spaced(key[0])} `{key[2]}`: {group[name]['error']}"
        for key, group in groups
        for name in others
        if name in group and group[name]["error"] is not None
    }
    return "\n".join([*lines, *([""] if reasons else []), *(f"- {text}" for text in sorted(reasons))])


def short(records: Records) -> tuple[str, int]:
    """Every measured shape of the table that is slower than cuBLAS, the slowest first; and how many."""
    slower = {
        job: group
        for row in ROWS
        for job, group in summarize(records, row).found.items()
        if group["hopgemm"]["ratio_to_cublas"] < NOT_UNDER
    }
    lines = [
        "| M x N x K | dtype | layout | protocol | cuBLAS | hopgemm | ratio | rounds differ by "
        "| `batch_invariant` | kernel |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for job in sorted(slower, key=lambda job: slower[job]["hopgemm"]["ratio_to_cublas"]):
        ours, theirs = slower[job]["hopgemm"], slower[job]["cublas"]
        kernels = "<br>".join(f"`{name}`" for name in ours["config"].split())
        lines.append(
            f"| {_spaced(job.key[0])} | {job.dtype} | `{job.layout}` | {job.protocol} | {_tflops(theirs)} "
            f"| {_tflops(ours)} | {ours['ratio_to_cublas']:.3f} | {ours['spread']:.1%} "
            f"| {_tflops(slower[job].get('batch_invariant'))} | {kernels} |"
        )
    return "\n".join(lines), len(slower)


def missing(records: Records) -> str:
    """What the table lacks, row by row."""
    lines = []
    for row in ROWS:
        found = summarize(records, row).found
        lacking = [job for job in row.jobs if job not in found]
        if lacking:
            named = ", ".join(_name(job) + _why(records, job) for job in lacking) if found else "all"
            lines.append(f"- {row.title}, {row.how}: {named}")
    return "\n".join(lines) or "- nothing"


def _why(records: Records, job: Job) -> str:
    """Of a shape that was tried: what came of it."""
    results = {name: records.get(job.key, {}).get(name) for name in ("cublas", "hopgemm")}
    return "".join(f" ({name}: {_tflops(r)})" for name, r in results.items() if r and not is_good(r))


def _core_groups(records: Records, layout: str) -> list[tuple[Key, dict[str, dict[str, Any]]]]:
    shapes = {format_shape(shape): i for i, shape in enumerate(SUITES["core"])}
    found = [
        (key, group)
        for key, group in records.items()
        if key[0] in shapes and key[1:3] == ("bf16", layout) and key[3] != "burst" and "hopgemm" in group
    ]
    return sorted(found, key=lambda item: shapes[item[0][0]])


def _invariant(groups: Any) -> str:
    """batch_invariant's speed as a part of the default's."""
    parts = [
        group["batch_invariant"]["tflops"] / group["hopgemm"]["tflops"]
        for group in groups
        if is_good(group.get("batch_invariant"))
    ]
    if not parts:
        return MISSING
    count = "" if len(parts) == len(groups) else f" ({len(parts)} shapes)"
    return f"{geometric_mean(parts):.3f}, least {min(parts):.2f}{count}"


def _read_roof(records: Records) -> str:
    row = next(row for row in ROWS if row.name == "small")
    jobs = [job for job in row.jobs if 2 * job.shape[1] * job.shape[2] > WEIGHTS_OVER_BYTES]
    found = summarize(records, row).found
    parts = {job: found[job]["hopgemm"]["ratio_to_roof"] for job in jobs if job in found}
    cells = [
        f"| M ≤ 128, weights over 64 MB, `kk`: part of the measured read roof | single | {READ_ROOF_AIM:.2f}"
    ]
    cells.append(f"{len(parts)} of {len(jobs)}")
    if parts:
        worst = min(parts, key=parts.__getitem__)
        reached = len(parts) == len(jobs) and parts[worst] >= READ_ROOF_AIM
        middle = f"{geometric_mean(parts.values()):.3f} | {median(parts.values()):.3f}"
        cells += [middle, f"{parts[worst]:.3f} ({_name(worst)})"]
    else:
        reached = False
        cells += [MISSING, MISSING, MISSING]
    return " | ".join([*cells, "", "yes" if reached else "no", " |"])


def _host(records: Sequence[dict[str, Any]]) -> str:
    """Of calls without a gradient; the largest ratio of times."""
    ratios = {r["case"]: r["hopgemm_us"] / r["torch_us"] for r in records if "forward" not in r["case"]}
    head = "| host time of an eager torch call without grad, of `torch.mm`'s | in turn | at most 1.00"
    if not ratios:
        return f"{head} | {MISSING} | {MISSING} | {MISSING} | {MISSING} | | no | |"
    worst = max(ratios, key=ratios.__getitem__)
    reached = "yes" if ratios[worst] <= 1 else "no"
    return (
        f"{head} | {len(ratios)} kinds of call | {geometric_mean(ratios.values()):.2f} "
        f"| {median(ratios.values()):.2f} | {ratios[worst]:.2f} ({worst}) | | {reached} | |"
    )


def _dram(records: Sequence[dict[str, Any]]) -> str:
    head = "| 8192³ `kk`, DRAM read | ncu | at most 0.75 GB"
    found = [r for r in records if r["shape"] == "8192x8192x8192"]
    if not found:
        return f"{head} | {MISSING} | {MISSING} | {MISSING} | {MISSING} | | no | |"
    ours, theirs = found[-1]["hopgemm_gb"], found[-1]["cublas_gb"]
    reached = "yes" if ours <= 0.75 else "no"
    return f"{head} | 1 of 1 | {ours:.2f} GB (cuBLAS {theirs:.2f}) | | | | {reached} | |"


def _tflops(record: dict[str, Any] | None) -> str:
    if record is None:
        return MISSING
    if not is_good(record):
        return "cannot" if record["error"] is not None else "WRONG"
    return f"{record['tflops']:.0f}" if record["tflops"] >= 100 else f"{record['tflops']:.1f}"


def _spaced(shape: str) -> str:
    return " x ".join(map(str, parse_shape(shape)))


def _name(job: Job) -> str:
    shape, dtype, layout, _ = job.key
    return f"{shape} {dtype}" + ("" if layout == "kk" else f" {layout}")
