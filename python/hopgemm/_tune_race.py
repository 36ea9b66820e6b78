"""How the fastest kernel for one product is found: who takes part, and rounds that fewer and fewer stay in.

A short look at every candidate; a few short rounds of those that came near the best; other walks over the
tiles for the first of them; then the finalists, in turn and in earnest. Only finalists are checked for
exactness, and what is wrong cannot win. Operands and clocks are a framework's (`_tune_torch`, `_tune_jax`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import time
import warnings
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any, NamedTuple, Protocol

from . import _bench_protocols as protocols
from . import _cache, _config_name, _core
from ._cache import Key, Tuned
from ._config_name import ConfigName

# CTAs of a cluster that share a tile's K, and walks over the tiles (docs/tuning.md).
_SPLITS = (2, 4)
_WALKS, _USUAL_WALK = ("m4", "m8", "m16", "n1", "n4", "n8"), "m8"
_TILE_K = 64
_PADDING = 8  # times the elements of the tiles that fit best: more is no candidate
_MOST_WAVES = 8  # after more of them the last one hardly counts
# From here on the power limit decides, and only sustained runs rank kernels rightly: winners in turn at 0.3
# to 0.7 ms made training steps up to 5% slower (docs/notes/2026-11-30-widths.md).
LONG_US = 200.0
_MARGIN = 1.01  # a winner is faster than the default by more than noise, or the default stays
_LOOK_S, _ONE_LOOK_S = 0.001, 0.02  # a look; what takes so long needs no second one
# Times the fastest. After a look: clocks may have sunk from one to the next. For the final: what wastes
# energy looks faster in turn with others than it is alone.
_NEAR, _CLOSE = 1.4, 1.1
_MOST_NEAR = 16

Report = Callable[[float, str], None]


class Timing(NamedTuple):
    """In turn, `rounds` times: `rest_s` of nothing, `settle_s` alone, not measured, `window_s` (seconds)."""

    rounds: int
    settle_s: float
    window_s: float
    rest_s: float = 0.0


_SCREEN = Timing(3, 0.0, 0.004)


class Effort(NamedTuple):
    """walks: of so many kernels other walks are tried; finalists: beside the default; short, long: how these
    are timed, below and from LONG_US a product on; screen: how those that came near the best at a look."""

    walks: int
    finalists: int
    short: Timing
    long: Timing
    screen: Timing = _SCREEN


_SINGLE = Timing(protocols.SINGLE_ROUNDS, 0.0, protocols.SAMPLE_S)
_SUSTAINED = Timing(protocols.SUSTAINED_ROUNDS, protocols.SETTLE_S, protocols.WINDOW_S)
THOROUGH = Effort(walks=2, finalists=3, short=_SINGLE, long=_SUSTAINED)  # 2 to 30 s a product
# Half a second, and three where it is long: the card is hot, since its neighbours are measured too.
SUITE = Effort(walks=1, finalists=4, short=Timing(8, 0.0, 0.006), long=Timing(2, 0.2, 0.4))
# In a training step of small layers most kernels wait for memory, and a product finds a cool card; even its
# long products, which stand alone among them.
_RESTED = Timing(8, 0.0, 0.0005, rest_s=0.01)
COOL = SUITE._replace(short=_RESTED, long=_RESTED, screen=_RESTED._replace(rounds=3))
FIRST_USE = Effort(walks=1, finalists=3, short=Timing(5, 0.0, 0.01), long=Timing(5, 0.0, 0.01))


class Bench(Protocol):
    """One product's operands on a GPU, and the kernels on them."""

    def is_exact(self, config: str) -> bool:
        """Does this kernel multiply integers as the framework does, bit for bit?"""
        ...

    def contender(self, config: str) -> protocols.Contender:
        """The kernel, ready to be timed."""
        ...


class Race:
    """Kernels on the operands of one product. gpu: its name."""

    def __init__(self, gpu: str, bench: Bench, effort: Effort) -> None:
        self._gpu, self._bench, self._effort = gpu, bench, effort
        self._contenders: dict[str, protocols.Contender] = {}
        self._seconds: dict[str, float] = {}  # of one product, as far as is known
        self._exact: dict[str, bool] = {}

    def winner(self, key: Key, report: Report) -> Tuned:
        """The fastest exact config for `key`: the operands' own, or that with another `batch_invariant`.

        RuntimeError where there is no exact one.
        """
        default = plan_of(key, self._gpu, tuned=False)["config"]
        names = list(dict.fromkeys([default, *candidates(key, self._gpu)]))
        report(0.1, f"looking at {len(names)} kernels")
        self._look(names)
        rivals = self._near(names)
        report(0.3, f"timing {len(rivals)} kernels")
        self._screen(rivals)
        first = self._near(rivals)[: self._effort.walks]
        walks = schedules(first, key, self._gpu)
        if walks:
            report(0.5, f"timing {len(walks)} schedules")
            self._look(walks)
            self._screen([*first, *self._near(walks)])  # these again: clocks may have sunk
        report(0.6, "checking the best")
        finalists = self._finalists([*names, *walks], default, key)
        report(0.7, f"timing the {len(finalists)} best")
        long = self._seconds[finalists[0]] * 1e6 >= LONG_US
        final = self._in_turn(finalists, self._effort.long if long else self._effort.short)
        winner = min(final, key=final.__getitem__)
        if default in final and final[default] < _MARGIN * final[winner]:
            winner = default
        before = final.get(default, final[winner])
        version = _core.driver_version(), _cache.version()
        return Tuned(self._gpu, *version, key, winner, final[winner] * 1e6, default, before * 1e6)

    def _look(self, names: list[str]) -> None:
        """Short runs of each that has had none: a kernel for 16 rows is no kernel for 16384.

        Two where they are short, the second the other way round: whoever comes first finds the clock that the
        last product has left.
        """
        new = [name for name in names if name not in self._seconds]
        for name in new:
            done, elapsed = self._contender(name).run(1)  # and loads what is loaded once
            self._seconds[name] = elapsed / done
        for order in (new, new[::-1]):
            for name in order:
                seconds = self._seconds[name]
                if seconds < _ONE_LOOK_S:
                    self._seconds[name] = min(seconds, _run(self._contender(name), _LOOK_S, seconds))

    def _near(self, names: list[str]) -> list[str]:
        """The fastest so far, not too many and not too far from the first."""
        first, *others = sorted(names, key=self._seconds.__getitem__)[:_MOST_NEAR]
        return [first, *(x for x in others if self._seconds[x] <= _NEAR * self._seconds[first])]

    def _screen(self, names: list[str]) -> None:
        self._seconds |= self._in_turn(names, self._effort.screen)

    def _finalists(self, names: list[str], default: str, key: Key) -> list[str]:
        """The fastest exact ones, and the default if it is exact."""
        found: list[str] = []
        for name in sorted(names, key=self._seconds.__getitem__):
            slow = found and self._seconds[name] > _CLOSE * self._seconds[found[0]]
            if slow or len(found) == self._effort.finalists:
                break
            if self._is_exact(name, key):
                found.append(name)
        if not found:
            raise RuntimeError(
                f"hopgemm.tune: no kernel multiplies {key} exactly on this GPU. Run hopgemm selftest"
            )
        return list(dict.fromkeys([*found, *([default] if self._is_exact(default, key) else [])]))

    def _is_exact(self, config: str, key: Key) -> bool:
        if config not in self._exact:
            self._exact[config] = self._bench.is_exact(config)
            if not self._exact[config]:
                warnings.warn(
                    f"hopgemm.tune: config {config} gives wrong numbers for {key}, and is left out. "
                    "Please report this, with the output of `hopgemm info`",
                    RuntimeWarning,
                    stacklevel=5,
                )
        return self._exact[config]

    def _in_turn(self, names: list[str], timing: Timing) -> dict[str, float]:
        """Seconds of one product of each: the median of the rounds."""
        rounds: dict[str, list[float]] = {name: [] for name in names}
        for i in range(timing.rounds):
            first = i % len(names)  # another one each time: what runs after a hungry kernel finds a low clock
            for name in (*names[first:], *names[:first]):
                contender, settled = self._contender(name), self._seconds[name]
                time.sleep(timing.rest_s)
                if timing.settle_s:
                    settled = _run(contender, timing.settle_s, settled)
                rounds[name].append(_run(contender, timing.window_s, settled))
        return {name: median(seconds) for name, seconds in rounds.items()}

    def _contender(self, config: str) -> protocols.Contender:
        if config not in self._contenders:
            self._contenders[config] = self._bench.contender(config)
        return self._contenders[config]


def _run(contender: protocols.Contender, seconds: float, estimated: float) -> float:
    """Seconds of one product, over about `seconds` of running."""
    done, elapsed = contender.run(max(1, math.ceil(seconds / max(estimated, 1e-7))))
    return elapsed / done


def candidates(key: Key, gpu: str) -> list[str]:
    """Compiled kernels that can run the product, by their full names, each with the parts of K that may pay.

    Left out is what cannot be fast: tiles that are padding for the most part, narrow ones beside which many
    others would read B again, tails for which no SM is idle, and splits for more than a few waves.
    """
    plans = {}
    for config in _core.configs():
        with contextlib.suppress(ValueError, RuntimeError):  # other dtypes or majors, too few SMs
            plans[config] = plan_of(key, gpu, config)
    parsed = {config: _config_name.parse(config) for config in plans}
    elements = {x: plan["tiles"] * parsed[x].tile_m * parsed[x].tile_n for x, plan in plans.items()}
    names: list[str] = []
    for config, plan in plans.items():
        kernel = parsed[config]
        is_swapped = kernel.arrangement == "swap"
        if elements[config] > _PADDING * min(elements.values()):
            continue
        if is_swapped and key.m > 4 * kernel.tile_m:
            continue
        names.append(plan["config"])
        for part in _splits(plan["tiles"], key) if is_swapped else _tails(kernel, key):
            with contextlib.suppress(ValueError, RuntimeError):  # not every kernel takes every one
                names.append(plan_of(key, gpu, config + part)["config"])
    return list(dict.fromkeys(names))


def _splits(tiles: int, key: Key) -> list[str]:
    """Two steps of K at least for each CTA, and few waves: of many the last, which parts fill, is little."""
    most = _MOST_WAVES * key.sm_count
    return [f"+split{x}" for x in _SPLITS if x * tiles <= most and x * 2 * _TILE_K <= key.k]


def _cluster_tiles(kernel: ConfigName, key: Key) -> tuple[int, int]:
    """Of one product: along M, and along N."""
    along_m, along_n = kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n
    return math.ceil(key.m / along_m), math.ceil(key.n / along_n)


def _tails(kernel: ConfigName, key: Key) -> list[str]:
    """Tails that give every cluster as much: of the last wave, of the last two, in parts of whole tiles."""
    clusters = key.sm_count // (kernel.cluster_m * kernel.cluster_n)
    down, across = _cluster_tiles(kernel, key)
    blocks = down * across * key.batch_inner * key.batch_outer
    last = blocks % clusters
    if not last or blocks > _MOST_WAVES * clusters:
        return []
    steps = math.ceil(key.k / _TILE_K)
    # Ranges that end where tiles do make fewer parts.
    found = [(last, min(clusters, last * steps // 2)), (last, last * (clusters // last))]
    if blocks > clusters:
        found.append((last + clusters, clusters))
    return [
        f"+tail{tail}x{ranges}" for tail, ranges in dict.fromkeys(found) if ranges > tail or tail > clusters
    ]


def schedules(configs: Iterable[str], key: Key, gpu: str) -> list[str]:
    """Other walks over the tiles for these kernels, and pools of CTAs where there is more than one wave.

    Walks of a single wave, too: neighbours in the walk are on different parts of the chip, and reads of one
    panel are joined within a part (docs/notes/2026-12-01-coalescing.md). Each order of the tiles once: of two
    names for one, noise would choose.
    """
    names = []
    for config in configs:
        instance, kernel = config.partition("+")[0], _config_name.parse(config)
        tokens = kernel.tokens
        parts = "".join(f"+{x}" for x in tokens if x.startswith(("split", "tail")))
        launches = dict.fromkeys(["", *(f"+{x}" for x in tokens if x.startswith("waves"))])
        tiles = _cluster_tiles(kernel, key)
        own = next((x for x in tokens if re.fullmatch(r"[mn]\d+", x)), _USUAL_WALK)
        one_wave = plan_of(key, gpu, config)["waves"] <= 1
        tried = {_order(own, tiles)} if one_wave else set()
        # HAZARD: a name without a schedule stands for the usual one: "all CTAs" has to be said by number.
        pools = dict.fromkeys([f"ctas{key.sm_count}", *(x for x in tokens if x.startswith("ctas"))])
        for walk, pool, waves in itertools.product(_WALKS, pools, launches):
            order = _order(walk, tiles) if one_wave else (_order(walk, tiles), pool, waves)
            if order in tried:
                continue
            tried.add(order)
            with contextlib.suppress(ValueError):
                names.append(plan_of(key, gpu, f"{instance}+{walk}+{pool}{waves}{parts}")["config"])
    return [name for name in dict.fromkeys(names) if name not in configs]


def _order(walk: str, tiles: tuple[int, int]) -> tuple[str, int] | None:
    """What a walk makes of so many tiles along M and N: strips are no wider than the result.

    None: of a single row or column, where all walks are one.
    """
    across = tiles[1] if walk[0] == "m" else tiles[0]
    return None if 1 in tiles else (walk[0], min(int(walk[1:]), across))


def deals_k(config: str) -> bool:
    """Does a sum depend on this schedule? With `batch_invariant` it may not run."""
    return any(re.match(r"(split|tail|k)\d", token) for token in _config_name.parse(config).tokens)


def plan_of(key: Key, gpu: str, config: str = "", tuned: bool = True) -> dict[str, Any]:
    """`_core.plan` of the product of a key."""
    product, where = _cache.arguments(key, gpu)
    return _core.plan(*product, **where, config=config, tuned=tuned)
