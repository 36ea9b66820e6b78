"""What both frameworks' benchmarks share: operands to rotate, rows to check, the error allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ._shapes import Shape

_UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
_HALF_SMALLEST_SUBNORMAL = {"bf16": 0.0, "fp16": 2.0**-25}  # bf16 has fp32's exponents: never that small


@dataclass(frozen=True)
class Check:
    """Is the product right, and its largest error as a part of the allowed one?"""

    correct: bool
    worst_error: float


def rotation_sets(shape: Shape, l2_bytes: int, limit: int = 4096) -> int:
    """Sets of operands that together hold at least twice what the L2 does; at least 2, at most `limit`."""
    m, n, k = shape
    return min(limit, max(2, math.ceil(2 * l2_bytes / (2 * k * (m + n)))))


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
