"""From records (`src/trace/record.h`) to a timeline: what each part of each CTA did from when to when, for
which stage and tile, and the figures that follow.

Recorded are the clock before and after each call of a role. Inferred is what engines did in between: a load
is in flight from its issue until the watcher sees its stage full; a wgmma group from its issue, or the end
of the group before, until a wait for it ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Op of src/trace/record.h, in its order.
(
    _WAIT_EMPTY,
    _LOAD_A,
    _LOAD_B,
    _WAIT_FULL,
    _MMA,
    _MMA_WAIT,
    _WAIT_TURN,
    _FINISH,
    _STAGE,
    _STORE,
    _STORE_WAIT,
) = range(11)
_DRAIN, _LANDED = 11, 12
_NAMES = {
    _WAIT_EMPTY: "wait for empty",
    _LOAD_A: "issue load of A",
    _LOAD_B: "issue load of B",
    _WAIT_FULL: "wait for full",
    _MMA: "issue wgmma",
    _MMA_WAIT: "wait for wgmma",
    _WAIT_TURN: "wait for turn",
    _FINISH: "scale and round",
    _STAGE: "stage result",
    _STORE: "issue store",
    _STORE_WAIT: "wait for staging slot",
    _DRAIN: "wait for stores",
}
_RECORD = struct.Struct("<4I")
_LATE = 200  # ns or cycles by which a watcher that polls may be behind a consumer that sleeps on the barrier
_NUM_ROLES = 4  # streams of a CTA: consumer 0, consumer 1, producer, watcher

LANES = ("producer", "loads in flight", "consumer 0", "consumer 1", "tensor cores 0", "tensor cores 1")
_PRODUCER_LANE, _LOAD_LANE, _CONSUMER_LANE, _MMA_LANE = 0, 1, 2, 4


class Span(NamedTuple):
    """Something that took from `begin` to `end` (in the timeline's unit). `tile`: its index in the CTA's own
    list of tiles; `step`: of K within it; -1 where it has none. `place`: stage or staging slot, or -1."""

    cta: int
    lane: int
    name: str
    begin: float
    end: float
    place: int
    tile: int
    step: int


class Record(NamedTuple):
    """One call: 32-bit clocks made whole, and what `src/trace/record.h` says."""

    begin: float
    end: float
    op: int
    where: int


@dataclass
class Timeline:
    """One launch.

    Attributes:
      source: who says so, for people.
      unit: of all times, "ns" or "cycles".
      measured: on a GPU; else modelled.
      config: instance and schedule.
      shape: M, N, K.
      spans: in no order.
      tiles: for each CTA, its tiles as (first row, first column).
      lost: records for which there was no room.
      inferred_landings: loads whose landing the watcher did not see; the wait for them bounds it.
    """

    source: str
    unit: str
    measured: bool
    config: str
    shape: tuple[int, int, int]
    spans: list[Span] = field(default_factory=list)
    tiles: list[list[tuple[int, int]]] = field(default_factory=list)
    lost: int = 0
    inferred_landings: int = 0


def read_records(
    streams: Sequence[bytes], clocks: Sequence[tuple[int, int]] | None
) -> list[list[list[Record]]]:
    """[cta][role] lists of records, on one time line.

    Args:
      streams: records as bytes, four streams a CTA.
      clocks: (nanoseconds, cycles) at the start and at the end of each CTA, which turn cycles into
        nanoseconds since the first start; None: cycles stay.
    """
    first = min(ns for ns, _ in clocks[::2]) if clocks else 0
    ctas = []
    for cta in range(len(streams) // _NUM_ROLES):
        start_ns, start_cycles, scale = 0.0, 0, 1.0
        if clocks:
            (ns, start_cycles), (end_ns, end_cycles) = clocks[2 * cta], clocks[2 * cta + 1]
            start_ns, scale = ns - first, (end_ns - ns) / (end_cycles - start_cycles)

        def time(clock: int, start: int = start_cycles, ns: float = start_ns, scale: float = scale) -> float:
            since = (clock - start) & 0xFFFFFFFF  # a little before the start wraps
            return ns + scale * (since - (1 << 32) if since >> 31 else since)

        ctas.append(
            [
                [Record(time(b), time(e), op, where) for b, e, op, where in _RECORD.iter_unpack(stream)]
                for stream in streams[cta * _NUM_ROLES : (cta + 1) * _NUM_ROLES]
            ]
        )
    return ctas


def add_cta(
    timeline: Timeline, cta: int, roles: Sequence[Sequence[Record]], k_tiles: int, cooperative: bool
) -> None:
    """Adds the spans of one CTA: its roles' calls, and what loads and wgmma did in between."""
    *consumers, producer, watcher = roles
    issued = list(_producer(timeline, cta, producer, k_tiles))
    waited: dict[int, float] = {}  # step of the CTA: when a consumer first knew that it had landed
    for consumer, records in enumerate(consumers):
        for step, end in _consumer(timeline, cta, consumer, records, k_tiles, cooperative):
            waited[step] = min(end, waited.get(step, end))
    for step, (begin, stage) in enumerate(issued):
        known = waited.get(step)
        landed = watcher[step].begin if step < len(watcher) else None
        if landed is None or landed < begin or (known is not None and landed > known + _LATE):
            timeline.inferred_landings += 1
            landed = known
        elif known is not None:
            landed = min(landed, known)
        if landed is not None:
            timeline.spans.append(
                Span(cta, _LOAD_LANE, "load", begin, landed, stage, step // k_tiles, step % k_tiles)
            )


def _producer(
    timeline: Timeline, cta: int, records: Sequence[Record], k_tiles: int
) -> Iterator[tuple[float, int]]:
    """Yields (first issue, stage) of each step. Waits after the last load drain the ring: of no tile."""
    step = -1
    loading = True
    last = max((i for i, r in enumerate(records) if r.op != _WAIT_EMPTY), default=-1)
    for i, r in enumerate(records):
        if r.op == _WAIT_EMPTY:
            step, loading = step + 1, False
        elif not loading:
            loading = True
            yield r.begin, r.where
        place = divmod(step, k_tiles) if i <= last else (-1, -1)
        timeline.spans.append(Span(cta, _PRODUCER_LANE, _NAMES[r.op], r.begin, r.end, r.where, *place))


def _consumer(
    timeline: Timeline, cta: int, consumer: int, records: Sequence[Record], k_tiles: int, cooperative: bool
) -> Iterator[tuple[int, float]]:
    """Yields (step of the CTA, end of the wait for it)."""

    def place(step: int) -> tuple[int, int]:
        tile, k = divmod(step, k_tiles)
        return (tile if cooperative else 2 * tile + consumer), k

    waits = finished = 0  # steps waited for; tiles rounded
    groups: list[tuple[float, int]] = []  # issue, stage
    done = 0
    done_at = float("-inf")
    for r in records:
        tile, step, where = -1, -1, r.where
        if r.op == _WAIT_FULL:
            tile, step = place(waits)
            yield tile * k_tiles + step, r.end
            waits += 1
        elif r.op == _MMA:
            tile, step = place(len(groups))
            groups.append((r.begin, r.where))
        elif r.op == _MMA_WAIT:
            where = -1
            while done < len(groups) - r.where:
                begin, stage = groups[done]
                begin = max(begin, done_at)  # groups of one consumer run one after the other
                done_at = r.end
                spanned = place(done)
                timeline.spans.append(
                    Span(cta, _MMA_LANE + consumer, "wgmma", begin, done_at, stage, *spanned)
                )
                done += 1
            tile, step = place(max(done - 1, 0))
        elif r.op in (_FINISH, _STAGE, _STORE, _STORE_WAIT):
            if r.op == _FINISH:
                finished = (len(groups) - 1) // k_tiles if groups else 0
            tile = finished if cooperative else 2 * finished + consumer
            where = r.where if r.op in (_STAGE, _STORE) else -1
        elif r.op == _WAIT_TURN:
            tile, where = place(len(groups))[0], -1
        timeline.spans.append(
            Span(cta, _CONSUMER_LANE + consumer, _NAMES[r.op], r.begin, r.end, where, tile, step)
        )


def figures(timeline: Timeline) -> dict[str, Any]:
    """What the timeline comes to; shares are means over the CTAs, of the launch's length.

    Returns:
      `makespan` (in the timeline's unit), `tensor_idle` (share of the time with no wgmma in flight),
      `mma_gap` (the same between the first and the last wgmma of a tile, of that time: 0 is back to back),
      `max_loads_in_flight` (stages, of any CTA), `wait_full`, `wait_empty` (shares of the consumers' and the
      producer's time), `ctas`.
    """
    begin, end = min(s.begin for s in timeline.spans), max(s.end for s in timeline.spans)
    ctas = {s.cta for s in timeline.spans}
    times: dict[str, float] = {}
    loads: dict[int, list[tuple[float, float]]] = {}
    products: dict[int, list[tuple[float, float]]] = {}
    products_of_tile: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for s in timeline.spans:
        if s.tile >= 0:  # the drain of a ring is no wait for a stage
            times[s.name] = times.get(s.name, 0.0) + s.end - s.begin
        if s.name == "load":
            loads.setdefault(s.cta, []).append((s.begin, s.end))
        elif s.name == "wgmma":
            products.setdefault(s.cta, []).append((s.begin, s.end))
            products_of_tile.setdefault((s.cta, s.tile), []).append((s.begin, s.end))
    busy = sum(map(_union, products.values()))
    inside = sum(max(e for _, e in p) - min(b for b, _ in p) for p in products_of_tile.values())
    gap = inside - sum(map(_union, products_of_tile.values()))
    whole = (end - begin) * len(ctas)
    return {
        "makespan": end - begin,
        "tensor_idle": 1 - busy / whole,
        "mma_gap": gap / inside if inside else 0.0,
        "max_loads_in_flight": max(map(_most_at_once, loads.values()), default=0),
        "wait_full": times.get("wait for full", 0.0) / (2 * whole),
        "wait_empty": times.get("wait for empty", 0.0) / whole,
        "ctas": len(ctas),
    }


def _union(intervals: Sequence[tuple[float, float]]) -> float:
    """Length of what intervals cover together."""
    total, reach = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reach))
        reach = max(reach, end)
    return total


def _most_at_once(intervals: Sequence[tuple[float, float]]) -> int:
    changes = sorted([(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def chrome_trace(timeline: Timeline, ctas: int) -> dict[str, Any]:
    """The first `ctas` CTAs in Chrome's trace format, for Perfetto: a process a CTA, a thread a lane.

    Times are microseconds; a modelled cycle counts as a nanosecond, which `otherData` says.
    """
    events: list[dict[str, Any]] = []
    for cta in range(min(ctas, len(timeline.tiles))):
        events.append({"ph": "M", "name": "process_name", "pid": cta, "args": {"name": f"CTA {cta}"}})
        events += [
            {"ph": "M", "name": "thread_name", "pid": cta, "tid": lane, "args": {"name": name}}
            for lane, name in enumerate(LANES)
        ]
        events += [
            {"ph": "M", "name": "thread_sort_index", "pid": cta, "tid": lane, "args": {"sort_index": lane}}
            for lane in range(len(LANES))
        ]
    origin = min(s.begin for s in timeline.spans)
    for s in timeline.spans:
        if s.cta >= ctas:
            continue
        args: dict[str, Any] = {}
        if s.place >= 0:
            args["stage"] = s.place
        if s.tile >= 0:
            args["tile"] = list(timeline.tiles[s.cta][s.tile])
        if s.step >= 0:
            args["step"] = s.step
        events.append(
            {
                "ph": "X",
                "name": s.name,
                "pid": s.cta,
                "tid": s.lane,
                "ts": round((s.begin - origin) / 1000, 4),
                "dur": round((s.end - s.begin) / 1000, 4),
                "args": args,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about(timeline)}


def about(timeline: Timeline) -> dict[str, Any]:
    """What was traced, by what, and the figures."""
    return {
        "source": timeline.source,
        "measured": timeline.measured,
        "unit": timeline.unit,
        "config": timeline.config,
        "shape": list(timeline.shape),
        "lost_records": timeline.lost,
        "inferred_landings": timeline.inferred_landings,
        "figures": figures(timeline),
    }
