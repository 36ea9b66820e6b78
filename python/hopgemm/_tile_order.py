"""Orders in which the tiles of a product are visited: how many panels are in flight, what L2 makes of it.

A tile needs a panel of A (its rows) and a panel of B (its columns). The fewer panels the tiles that run at
once need together, the less comes from DRAM. The kernel's own orders come from the scheduler that the GPU
runs; row order, plain strips and the Hilbert curve are here for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ._l2_model import Block, Walk, traffic

_QUICK_STEP_K = 256


@dataclass(frozen=True)
class Order:
    """One order of one product. Bytes are modelled for an H200 (`_l2_model`).

    Attributes:
      name: what it is.
      panels: mean panels of A and B that `in_flight` consecutive cluster tiles need.
      dram_gb: read from DRAM, GB.
      l2_hit_rate: share of the SMs' reads that L2 serves.
    """

    name: str
    panels: float
    dram_gb: float
    l2_hit_rate: float


def mean_panels(order: Sequence[tuple[int, ...]], in_flight: int) -> float:
    """Different rows plus different columns in `in_flight` consecutive tiles, mean over all windows."""
    in_flight = min(in_flight, len(order))
    windows = [order[i : i + in_flight] for i in range(len(order) - in_flight + 1)]
    return sum(len({t[0] for t in w}) + len({t[1] for t in w}) for w in windows) / len(windows)


def rows(m_blocks: int, n_blocks: int) -> list[Block]:
    """Row after row, each from its start."""
    return [Block(m, n) for m in range(m_blocks) for n in range(n_blocks)]


def strips(m_blocks: int, n_blocks: int, group: int) -> list[Block]:
    """Strips `group` columns wide, each walked row by row from the top: what most libraries ship."""
    return [
        Block(m, n)
        for first in range(0, n_blocks, group)
        for m in range(m_blocks)
        for n in range(first, min(first + group, n_blocks))
    ]


def hilbert(m_blocks: int, n_blocks: int) -> list[Block]:
    """The Hilbert curve of the smallest square that holds the grid, less what lies outside of it."""
    side = 1
    while side < max(m_blocks, n_blocks):
        side *= 2
    cells = (_hilbert_cell(side, i) for i in range(side * side))
    return [Block(m, n) for m, n in cells if m < m_blocks and n < n_blocks]


def _hilbert_cell(side: int, index: int) -> tuple[int, int]:
    x = y = 0
    size = 1
    while size < side:
        right, up = 1 & index // 2, 1 & (index ^ index // 2)
        if not up:
            if right:
                x, y = size - 1 - x, size - 1 - y
            x, y = y, x
        x, y = x + size * right, y + size * up
        index //= 4
        size *= 2
    return x, y


def scheduled(config: str, m: int, n: int, k: int, ctas: int) -> Walk:
    """The walk of a config (`hopgemm.plan(...).config`) on a grid of `ctas`, from the kernel's own scheduler.

    Raises:
      ValueError: there is no such config, or no such size.
    """
    from . import _trace_core

    facts = _trace_core.facts(config, m, n)
    pool = ctas // (facts["cluster_m"] * facts["cluster_n"])
    order = [Block(*block) for block in _trace_core.tile_order(config, m, n)]
    tile_m, tile_n = facts["tile_m"] * facts["cluster_m"], facts["tile_n"] * facts["cluster_n"]
    return Walk(order, pool, tile_m, tile_n, k, tuple(facts["policies"]))


def compare(config: str, m: int, n: int, k: int, ctas: int, in_flight: int | None = None) -> list[Order]:
    """The config's order beside row order, plain strips and the Hilbert curve, for the same tile and grid.

    Args:
      config: an instance, with or without a schedule.
      m: rows of the result.
      n: its columns.
      k: length of the sums.
      ctas: the grid.
      in_flight: cluster tiles that count as running at once for `panels`; None: all that the grid holds.

    Raises:
      ValueError: there is no such config, or no such size.
    """
    own = scheduled(config, m, n, k, ctas)
    m_blocks, n_blocks = -(-m // own.tile_m), -(-n // own.tile_n)
    orders = {
        "row by row": rows(m_blocks, n_blocks),
        "strips of 8": strips(m_blocks, n_blocks, 8),
        "strips of 4": strips(m_blocks, n_blocks, 4),
        "Hilbert curve": hilbert(m_blocks, n_blocks),
    }
    walks = {name: Walk(order, own.pool, own.tile_m, own.tile_n, k) for name, order in orders.items()}
    walks[f"the kernel's: {config}"] = own
    result = []
    for name, walk in walks.items():
        t = traffic(walk, step_k=64 if walk is own else _QUICK_STEP_K)
        panels = mean_panels(walk.order, in_flight or walk.pool)
        result.append(Order(name, panels, t.dram / 1e9, t.hit_rate))
    return result


def render(orders: Sequence[Order], in_flight: int) -> str:
    """A table for people."""
    width = max(len(o.name) for o in orders)
    lines = [f"{'order':{width}}  panels  DRAM GB  L2 hits"]
    lines += [
        f"{o.name:{width}}  {o.panels:6.2f}  {o.dram_gb:7.3f}  {100 * o.l2_hit_rate:6.1f}%" for o in orders
    ]
    lines += [
        "",
        f"panels: mean panels of A and B that {in_flight} cluster tiles in flight need together.",
        "DRAM GB, L2 hits: modelled for an H200, not measured (docs/trace.md).",
    ]
    return "\n".join(lines)


def as_json(orders: Sequence[Order]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [asdict(o) for o in orders]
