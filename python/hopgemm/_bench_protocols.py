"""How to time: three protocols, which rank kernels differently. No framework here, and no CUDA.

*sustained*: what a training run sees. The board is power limited: each contender runs alone, settles, is
timed. HAZARD: interleaving launch by launch makes rivals share one clock and flatters whoever wastes energy.
*burst*: ten launches on a rested card.
*single*: small and memory-bound shapes, A B A B, inputs rotated through more than the L2 holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from ._bench_meter import Meter, Reading

SETTLE_S, WINDOW_S, ENERGY_WINDOW_S = 0.7, 1.5, 5.0
REST_S, BURST_LAUNCHES = 1.0, 10
SAMPLE_S = 0.010
SUSTAINED_ROUNDS, BURST_ROUNDS, SINGLE_ROUNDS = 3, 3, 11


class Contender(Protocol):
    """One way to compute a product. `config`: the kernel's or the library backend's name."""

    name: str
    config: str

    def run(self, launches: int) -> tuple[int, float]:
        """Runs at least so many products back to back; returns how many, and the seconds on the device."""
        ...


@dataclass
class Result:
    """What the rounds of one contender gave."""

    seconds_each: list[float] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    joules: float | None = None  # of one product

    @property
    def seconds(self) -> float:
        """Of one product: the median of the rounds."""
        return median(self.seconds_each)

    @property
    def spread(self) -> float:
        """The slowest round over the fastest, less 1."""
        return max(self.seconds_each) / min(self.seconds_each) - 1

    def reading(self, name: str) -> float | None:
        """Median of the rounds' "sm_clock_mhz" or "watts"; None where nothing could be read."""
        values = [value for value in (getattr(r, name) for r in self.readings) if value is not None]
        return median(values) if values else None


def run(
    protocol: str,
    contenders: Sequence[Contender],
    meter: Meter,
    *,
    seconds: float = 0.0,
    energy: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Result]:
    """Times the contenders by "sustained", "burst" or "single".

    seconds: for all of them together; buys rounds beyond the protocol's least. energy: sustained only: one
    window of 5 s more for each contender, on the energy counter.
    """
    if protocol == "sustained":
        return sustained(contenders, meter, seconds=seconds, energy=energy)
    if protocol == "burst":
        return burst(contenders, meter, seconds=seconds, sleep=sleep)
    return single(contenders, seconds=seconds)


def sustained(
    contenders: Sequence[Contender], meter: Meter, *, seconds: float = 0.0, energy: bool = False
) -> list[Result]:
    """Each alone for 0.7 s to settle, then at least 1.5 s; in turn; at least three rounds."""
    results = [Result() for _ in contenders]
    round_s = len(contenders) * (SETTLE_S + WINDOW_S)
    for last in _rounds(SUSTAINED_ROUNDS, seconds / round_s):
        for contender, result in zip(contenders, results, strict=True):
            settled = _run_for(contender, SETTLE_S, estimate(contender))
            with meter.sample() as reading:
                result.seconds_each.append(_run_for(contender, WINDOW_S, settled))
            result.readings.append(reading.value)
            if last and energy:
                result.joules = _joules(contender, result.seconds_each[-1], meter)
    return results


def burst(
    contenders: Sequence[Contender],
    meter: Meter,
    *,
    seconds: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Result]:
    """Ten launches after one second of rest, in turn, at least three rounds."""
    results = [Result() for _ in contenders]
    for contender in contenders:
        contender.run(1)  # whatever happens once
    for _ in _rounds(BURST_ROUNDS, seconds / (len(contenders) * REST_S)):
        for contender, result in zip(contenders, results, strict=True):
            sleep(REST_S)
            with meter.sample() as reading:
                launches, elapsed = contender.run(BURST_LAUNCHES)
            result.seconds_each.append(elapsed / launches)
            result.readings.append(reading.value)
    return results


def single(
    contenders: Sequence[Contender], *, seconds: float = 0.0, rounds: int = SINGLE_ROUNDS
) -> list[Result]:
    """Short samples, A B A B, at least eleven rounds."""
    results = [Result() for _ in contenders]
    launches = [math.ceil(SAMPLE_S / estimate(contender)) for contender in contenders]
    for _ in _rounds(rounds, seconds / (len(contenders) * SAMPLE_S)):
        for contender, count, result in zip(contenders, launches, results, strict=True):
            # No readings: the meter averages over a second, in which all contenders have had their turn.
            done, elapsed = contender.run(count)
            result.seconds_each.append(elapsed / done)
    return results


def estimate(contender: Contender) -> float:
    """Roughly the seconds of one product, after a first launch that loads what is loaded once."""
    launches, _ = contender.run(1)
    while True:
        done, elapsed = contender.run(launches)
        if elapsed >= SAMPLE_S / 4:
            return elapsed / done
        launches = max(2 * done, 1)


def _rounds(least: int, affordable: float) -> list[bool]:
    """One entry for each round: is it the last?"""
    count = max(least, int(affordable))
    return [index == count - 1 for index in range(count)]


def _run_for(contender: Contender, seconds: float, estimated: float) -> float:
    """Seconds of one product, over at least `seconds` of running."""
    launches, elapsed = 0, 0.0
    while elapsed < seconds:
        # 3% more than estimated, so that one stretch without a gap is the rule
        done, took = contender.run(max(1, math.ceil(1.03 * (seconds - elapsed) / estimated)))
        launches, elapsed = launches + done, elapsed + took
    return elapsed / launches


def _joules(contender: Contender, settled: float, meter: Meter) -> float | None:
    before = meter.joules()
    if before is None:
        return None
    launches, _ = contender.run(math.ceil(ENERGY_WINDOW_S / settled))
    after = meter.joules()
    return None if after is None else (after - before) / launches
