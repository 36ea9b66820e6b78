"""What both frameworks' benchmarks share: what is multiplied, operands to rotate, rows to check, errors.

A *layout* is the contiguous dimensions of A and B ("kk", "kn", "mk", "mn"), or a training step of a linear
layer with M tokens whose weight is stored as (N, K) or as (K, N): "training-nk", "training-kn".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

from ._shapes import Shape

Operands = TypeVar("Operands")

_UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
_HALF_SMALLEST_SUBNORMAL = {"bf16": 0.0, "fp16": 2.0**-25}  # bf16 has fp32's exponents: never that small


@dataclass(frozen=True)
class Check:
    """Is the product right, and its largest error as a part of the allowed one?"""

    correct: bool
    worst_error: float


TRAINING_LAYOUTS = ("training-nk", "training-kn")
LAYOUTS = ("kk", "kn", "mk", "mn", *TRAINING_LAYOUTS)


def products(shape: Shape, layout: str) -> tuple[tuple[Shape, str], ...]:
    """What one launch computes, as (shape, majors): one product, or forward, dgrad and wgrad of a step."""
    if layout not in TRAINING_LAYOUTS:
        return ((shape, layout),)
    m, n, k = shape
    nk = layout == "training-nk"
    # x (M, K), dy (M, N): y = x @ w, dx = dy @ w.T, dw = x.T @ dy; with w stored as (N, K) dw = dy.T @ x
    return (
        (shape, "kk" if nk else "kn"),
        ((m, k, n), "kn" if nk else "kk"),
        ((n, k, m) if nk else (k, n, m), "mn"),
    )


def flops(shape: Shape, layout: str) -> float:
    """Floating-point operations of one launch."""
    return sum(2.0 * m * n * k for (m, n, k), _ in products(shape, layout))


def rotation_sets(shape: Shape, l2_bytes: int, limit: int = 4096) -> int:
    """Sets of operands that together hold at least twice what the L2 does; at least 2, at most `limit`."""
    m, n, k = shape
    return min(limit, max(2, math.ceil(2 * l2_bytes / (2 * k * (m + n)))))


def graph_launches(sets: list[Operands]) -> list[Operands]:
    """What a CUDA graph launches: whole rotations of the sets, 16 launches at least.

    The first launch of a graph waits for the graph before it to end, as no launch in a model's graph does.
    """
    return sets * math.ceil(16 / len(sets))


def sample_rows(m: int, count: int = 8) -> list[int]:
    """The first row, the last, and some between, of the tail tile too."""
    return sorted({0, m - 1, *(m * i // count for i in range(1, count)), max(0, m - m % 128)} & set(range(m)))


def error_bound(exact: Any, magnitude: Any, k: int, dtype: str) -> Any:
    """What |error| may be: one rounding of the result, and fp32 sums of K terms in any order.

    exact: |A @ B|, magnitude: |A| @ |B|, both in fp64, as arrays of any library.
    """
    return _UNIT_ROUNDOFF[dtype] * exact + k * 2.0**-23 * magnitude + _HALF_SMALLEST_SUBNORMAL[dtype]


def bytes_moved(shape: Shape) -> int:
    """Each 16-bit operand once and the result once."""
    m, n, k = shape
    return 2 * (m * k + k * n + m * n)
