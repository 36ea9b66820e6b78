"""The rows of the table of speed: what each is about, what is measured for it, and what it is to reach.

`run.py --rows` measures them, in this order; `summary.py` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jobs import Job, make_jobs

from hopgemm._shapes import BIG_SQUARES, SUITES, Shape


@dataclass(frozen=True)
class Row:
    """Ratios to cuBLAS: their geometric mean is to be `geomean`, none is to be under `least`."""

    name: str
    title: str
    how: str
    jobs: tuple[Job, ...]
    geomean: float
    least: float | None = None


def _where(least_m: int, most_m: float) -> Iterable[Shape]:
    return (shape for shape in SUITES["all"] if least_m <= shape[0] <= most_m)


def _row(name: str, title: str, how: str, jobs: list[Job], geomean: float, least: float | None = None) -> Row:
    return Row(name, title, how, tuple(jobs), geomean, least)


_BOTH = ("bf16", "fp16")
ROWS = (
    _row(
        "squares",
        "4096³, 8192³, 16384³, bf16 and fp16, `kk`",
        "sustained",
        make_jobs(BIG_SQUARES, _BOTH, protocol="sustained"),
        1.04,
        1.02,
    ),
    _row("large", "M ≥ 512, `kk`", "sustained or single", make_jobs(_where(512, 1e9)), 1.04, 0.99),
    _row("small", "M ≤ 128, `kk`", "single", make_jobs(_where(1, 128)), 1.20, 0.99),
    _row("m256", "M = 256, `kk`", "single", make_jobs(_where(256, 256)), 1.05, 0.99),
    _row(
        "burst",
        "4096³, 8192³, 16384³, bf16 and fp16, `kk`",
        "burst",
        make_jobs(BIG_SQUARES, _BOTH, protocol="burst"),
        1.01,
        0.99,
    ),
    _row(
        "training",
        "training step of Llama's layers, weights (N, K) and (K, N)",
        "sustained",
        make_jobs(SUITES["training"], layouts=("training-nk", "training-kn")),
        1.03,
    ),
    _row(
        "kn", "M ≥ 512, `kn`", "sustained or single", make_jobs(_where(512, 1e9), layouts=["kn"]), 1.03, 0.98
    ),
    _row(
        "mn", "M ≥ 512, `mn`", "sustained or single", make_jobs(_where(512, 1e9), layouts=["mn"]), 1.03, 0.98
    ),
    _row(
        "mk", "M ≥ 512, `mk`", "sustained or single", make_jobs(_where(512, 1e9), layouts=["mk"]), 1.03, 0.98
    ),
)
BY_NAME = {row.name: row for row in ROWS}
READ_ROOF_AIM, WEIGHTS_OVER_BYTES = 0.88, 64e6  # of the row "small": what the measured read roof allows
