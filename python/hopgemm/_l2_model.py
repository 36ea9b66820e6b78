"""What of a product's operands comes from DRAM, and what L2 still has: a model of one order of tiles.

The cache holds blocks, each one cluster tile's rows of A, or columns of B, for one step of K. Clusters walk
their tiles at one speed, each a fixed while behind the first. Replacement is least recently used within
three classes, evict-first, normal, evict-last: a victim is of the lowest class of which its set has a line,
which with 16 ways and a share p of the cache is so with the chance 1 - (1 - p)^16. An access moves a block
to the access's class.

Two constants. Only half of L2 counts, since a line is kept in both halves of the chip; no fit. The lag of
the clusters is fitted to one measurement, of A evict-first, which lives or dies by it. `docs/trace.md` has
the model beside what was measured.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

H200_L2_BYTES = 62_914_560
_WAYS = 16
_LAG = 22 * 64  # elements of K by which the last cluster is behind the first
_CLASSES = "fnl"  # evict-first, normal, evict-last


class Block(NamedTuple):
    """One cluster tile of the walk: its place, in cluster tiles; does K run backwards."""

    m: int
    n: int
    reversed: bool = False


@dataclass(frozen=True)
class Walk:
    """Who multiplies what when.

    Attributes:
      order: cluster tiles; cluster i of `pool` takes tiles i, i + pool, ...
      tile_m, tile_n: of a cluster, in elements.
      policies: of A, B and D: "f", "n" or "l" each.
    """

    order: Sequence[Block]
    pool: int
    tile_m: int
    tile_n: int
    k: int
    policies: tuple[str, str, str] = ("n", "n", "n")


class Traffic(NamedTuple):
    """Bytes: `dram` of what was read from DRAM, `requested` of what the SMs asked L2 for."""

    dram: int
    requested: int

    @property
    def hit_rate(self) -> float:
        """Share of the requested bytes that L2 had. (ncu's rate is lower: it counts both halves' lookups.)"""
        return 1 - self.dram / self.requested


class _Cache:
    def __init__(self, size: float) -> None:
        self._size = size
        self._classes: dict[str, OrderedDict[tuple[str, int, int], int]] = {
            c: OrderedDict() for c in _CLASSES
        }
        self._bytes = dict.fromkeys(_CLASSES, 0)
        self._class_of: dict[tuple[str, int, int], str] = {}
        self._random = random.Random(1)

    def access(self, key: tuple[str, int, int], size: int, policy: str) -> bool:
        """Was it there? Now it is."""
        before = self._class_of.get(key)
        if before == policy:
            self._classes[policy].move_to_end(key)
            return True
        if before:
            self._bytes[before] -= self._classes[before].pop(key)
        self._class_of[key] = policy
        self._classes[policy][key] = size
        self._bytes[policy] += size
        while sum(self._bytes.values()) > self._size:
            self._evict()
        return before is not None

    def _evict(self) -> None:
        victims = [c for c in _CLASSES if self._bytes[c]]
        for c in victims:
            share = min(1.0, self._bytes[c] / self._size)
            if c == victims[-1] or self._random.random() < 1 - (1 - share) ** _WAYS:
                key, size = self._classes[c].popitem(last=False)
                self._bytes[c] -= size
                del self._class_of[key]
                return


def traffic(walk: Walk, l2_bytes: int = H200_L2_BYTES, step_k: int = 64) -> Traffic:
    """Bytes that the walk reads, for operands of 2 bytes an element.

    Args:
      walk: the order, tile and policies.
      l2_bytes: of the whole chip.
      step_k: K elements of a block. 64 is what the kernel loads at a time; 256 is four times as quick and
        within 2% where no policy is used.
    """
    steps = -(-walk.k // step_k)
    draw = random.Random(2)
    lags = [int(draw.random() * _LAG / step_k) for _ in range(walk.pool)]
    a_bytes, b_bytes = walk.tile_m * step_k * 2, walk.tile_n * step_k * 2
    d_bytes = walk.tile_m * walk.tile_n * 2
    cache = _Cache(l2_bytes / 2)
    dram = requested = 0
    rounds = -(-len(walk.order) // walk.pool)
    for time in range(rounds * steps + max(lags)):
        for cluster, lag in enumerate(lags):
            if time < lag:
                continue
            turn, step = divmod(time - lag, steps)
            index = cluster + turn * walk.pool
            if index >= len(walk.order):
                continue
            block = walk.order[index]
            a_policy, b_policy, d_policy = walk.policies
            k = steps - 1 - step if block.reversed else step
            if not cache.access(("a", block.m, k), a_bytes, a_policy):
                dram += a_bytes
            if not cache.access(("b", block.n, k), b_bytes, b_policy):
                dram += b_bytes
            requested += a_bytes + b_bytes
            if step == steps - 1:
                cache.access(("d", block.m, block.n), d_bytes, d_policy)
    return Traffic(dram, requested)
