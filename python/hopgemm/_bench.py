"""`hopgemm bench`: shape by shape, hopgemm beside cuBLAS, and the records it leaves.

One record per contender and shape. Which shapes: `_shapes`. How to time: `_bench_protocols`. How to run a
product: `_bench_torch` and `_bench_jax`. The file of results: `_bench_results`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import _bench_protocols as protocols
from . import _core
from ._bench_case import TRAINING_LAYOUTS, Check, bytes_moved, flops, products
from ._bench_meter import Meter, open_meter
from ._bench_results import Results
from ._shapes import BIG_SQUARES, Shape, format_shape

_FLOPS_PER_SM_AND_CLOCK = 4096  # dense 16-bit tensor cores of compute capability 9.0
_SUSTAINED_FROM_S = 1e-3
_TYPICAL_FLOPS = 660e12  # a second: only decides which protocol a shape falls under
_PROBE_ROUNDS = 3
_COOL_ROOF_S = 0.02  # too short to reach the power limit
_OURS = ("cublas", "hopgemm", "batch_invariant")  # whose failure is one of the run; a peer's is not

Peer = Callable[[Any], Any]  # takes a rig's case, gives a contender on its operands


@dataclass(frozen=True)
class Roofs:
    """What the chip can do at most: a read-only sweep of memory; bare wgmma, cool and power limited."""

    memory_bytes_per_s: float
    tensor_flops_cool: float
    tensor_flops_sustained: float

    def seconds(self, shape: Shape, layout: str, protocol: str) -> float:
        """The least time a product, or the three of a training step, can take."""
        tensor = self.tensor_flops_sustained if protocol == "sustained" else self.tensor_flops_cool
        return sum(
            max(flops(s, majors) / tensor, bytes_moved(s) / self.memory_bytes_per_s)
            for s, majors in products(shape, layout)
        )


@dataclass(frozen=True)
class Task:
    """What to measure, beside cuBLAS.

    layout: one of `_bench_case.LAYOUTS`; protocol: "auto" or one of `_bench_protocols`; configs: "" lets
    hopgemm choose, and then `batch_invariant` is measured too; peers: other libraries, by name.
    """

    shapes: Sequence[Shape]
    dtype: str = "bf16"
    layout: str = "kk"
    protocol: str = "auto"
    configs: Sequence[str] = ("",)
    seconds_per_shape: float = 0.0
    peers: Mapping[str, Peer] = field(default_factory=dict)

    def wanted(self) -> set[tuple[str, str]]:
        """(contender, requested config) of the records that a shape is to have."""
        invariant = {("batch_invariant", "")} if "" in self.configs else set()
        ours = {("hopgemm", config) for config in self.configs}
        return {("cublas", "")} | ours | invariant | {(name, "") for name in self.peers}


def protocol_of(shape: Shape, protocol: str, layout: str = "kk") -> str:
    """What "auto" stands for: sustained for the three big squares, over about 1 ms and for training steps,
    else single."""
    if protocol != "auto":
        return protocol
    is_long = flops(shape, layout) / _TYPICAL_FLOPS >= _SUSTAINED_FROM_S
    return "sustained" if is_long or shape in BIG_SQUARES or layout in TRAINING_LAYOUTS else "single"


@dataclass
class Session:
    """A task on one machine, with what it takes to measure there.

    rig: makes a shape's contenders (TorchRig or JaxRig); sm_count: of its GPU.
    """

    task: Task
    rig: Any
    meter: Meter
    roofs: Roofs
    sm_count: int
    results: Results

    def measure(self, report: Callable[[str], None]) -> bool:
        """Every shape that is not recorded yet, saved one by one. False if anything failed or is wrong."""
        good = True
        for shape in self.task.shapes:
            protocol = protocol_of(shape, self.task.protocol, self.task.layout)
            group = {
                "shape": format_shape(shape),
                "dtype": self.task.dtype,
                "layout": self.task.layout,
                "protocol": protocol,
                "framework": self.rig.name,
            }
            where = f"{group['shape']} {self.task.dtype} {self.task.layout} {protocol}"
            if self.results.has(group, self.task.wanted()):
                report(f"{where}: already there")
                continue
            records = self._measure_shape(shape, protocol)
            self.rig.release()
            self.results.add({**group, **record} for record in records)
            for record in records:
                failed = record["error"] is not None or not record["correct"]
                good = good and not (failed and record["contender"] in _OURS)
                report(f"{where}: {_one_line(record)}")
        return good

    def _measure_shape(self, shape: Shape, protocol: str) -> list[dict[str, Any]]:
        task = self.task
        case = self.rig.case(shape, task.dtype, task.layout, graph=protocol == "single")
        contenders, requests, failures = [_faster(case.baselines())], [""], []
        wanted = [("hopgemm", config, case.hopgemm) for config in task.configs]
        is_same = "" in task.configs and case.chosen("", True) == case.chosen("", False)
        if "" in task.configs and not is_same:
            wanted.append(("batch_invariant", "", lambda config: case.hopgemm(config, batch_invariant=True)))
        wanted += [(name, "", _opener(peer, case)) for name, peer in task.peers.items()]
        for name, config, make in wanted:
            try:
                contenders.append(make(config))
                requests.append(config)
            except _catchable(name) as error:  # it cannot run this shape; the others may
                failures.append(_failure(name, config, error))
        checks = [contender.check() for contender in contenders]
        timed = protocols.run(
            protocol,
            contenders,
            self.meter,
            seconds=task.seconds_per_shape,
            energy=protocol == "sustained" and task.layout == "kk" and shape in BIG_SQUARES,
        )
        rows = zip(contenders, requests, checks, timed, strict=True)
        records = [self._record(shape, protocol, *row, timed[0].seconds) for row in rows]
        if is_same:
            records += [_as_batch_invariant(r) for r in records if _is_default(r)]
        return records + failures

    def _record(
        self,
        shape: Shape,
        protocol: str,
        contender: Any,
        request: str,
        check: Check,
        result: protocols.Result,
        cublas_s: float,
    ) -> dict[str, Any]:
        tera = flops(shape, self.task.layout) * 1e-12
        clock = result.reading("sm_clock_mhz")
        peak = self.sm_count * _FLOPS_PER_SM_AND_CLOCK * (clock or 0.0) * 1e-6  # TFLOP/s at that clock
        least = self.roofs.seconds(shape, self.task.layout, protocol)
        return {
            "contender": contender.name,
            "config": contender.config,
            "requested": request,
            "measured_as": contender.name,
            "timing": contender.timing,
            "card": self.rig.uuid,
            "tflops": tera / result.seconds,
            "microseconds": result.seconds * 1e6,
            "ratio_to_cublas": cublas_s / result.seconds,
            "ratio_to_roof": least / result.seconds,
            "sm_clock_mhz": clock,
            "watts": result.reading("watts"),
            "mj_per_tflop": None if result.joules is None else result.joules * 1e3 / tera,
            "utilisation": tera / result.seconds / peak if peak else None,
            "correct": check.correct,
            "worst_error": check.worst_error,
            "rounds": len(result.seconds_each),
            "spread": result.spread,
            "error": None,
        }


def open_session(task: Task, baseline: str, path: Path | None) -> Session:
    """Opens the GPU through "torch", "jax" or "auto", measures the roofs, and continues the file at `path`.

    RuntimeError where there is no framework or no Hopper GPU, ValueError where the file is of another commit
    or machine.
    """
    rig = _open_rig(baseline)
    gpu = _core.device_info(rig.device)
    if tuple(gpu["compute_capability"]) != (9, 0):
        found = ".".join(map(str, gpu["compute_capability"]))
        raise RuntimeError(f"hopgemm bench: {gpu['name']} is of compute capability {found}; 9.0 is needed")
    meter = open_meter(rig.uuid)
    memory, cool = rig.memory_roof(), _core.roof(rig.device, _COOL_ROOF_S)
    _core.roof(rig.device, protocols.SETTLE_S)
    sustained = _core.roof(rig.device, protocols.WINDOW_S)
    roofs = Roofs(memory, cool * 1e12, sustained * 1e12)
    header = {
        "commit": _core.commit,
        "gpu": gpu["name"],
        "sm_count": gpu["sm_count"],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "protocol": task.protocol,
        "meter": meter.source,
        "driver": None,
        **meter.facts,
        **rig.versions,
        "roofs": asdict(roofs),
    }
    return Session(task, rig, meter, roofs, gpu["sm_count"], Results(header, path))


def _faster(baselines: list[Any]) -> Any:
    """cuBLAS is the faster of its backends, by a short probe."""
    if len(baselines) == 1:
        return baselines[0]
    probes = protocols.single(baselines, rounds=_PROBE_ROUNDS)
    return min(
        zip(probes, range(len(baselines)), baselines, strict=True), key=lambda p: (p[0].seconds, p[1])
    )[2]


def _opener(peer: Peer, case: Any) -> Callable[[str], Any]:
    def make(_: str) -> Any:
        contender = peer(case)
        contender.check()  # what fails at its first launch must fail here
        return contender

    return make


def _catchable(name: str) -> tuple[type[Exception], ...]:
    """hopgemm refuses by these two; what another library raises is its own affair."""
    return (ValueError, RuntimeError) if name in _OURS else (Exception,)


def _is_default(record: dict[str, Any]) -> bool:
    return (record["contender"], record["requested"]) == ("hopgemm", "")


def _as_batch_invariant(record: dict[str, Any]) -> dict[str, Any]:
    """The same kernel in the same schedule: one time is both's."""
    return {**record, "contender": "batch_invariant"}


def _failure(name: str, config: str, error: Exception) -> dict[str, Any]:
    numbers = (
        *("tflops", "microseconds", "ratio_to_cublas", "ratio_to_roof", "sm_clock_mhz", "watts"),
        *("mj_per_tflop", "utilisation", "correct", "worst_error", "rounds", "spread"),
        *("measured_as", "timing", "card"),
    )
    known = {"contender": name, "config": config, "requested": config}
    return {**known, **dict.fromkeys(numbers), "error": f"{type(error).__name__}: {error}"}


def _one_line(record: dict[str, Any]) -> str:
    if record["error"] is not None:
        return f"{record['contender']} {record['config']}: {record['error']}"
    wrong = "" if record["correct"] else "  WRONG RESULT"
    return (
        f"{record['contender']:15} {record['tflops']:7.1f} TFLOP/s {record['ratio_to_cublas']:6.3f} of cuBLAS"
        f"  {record['config']}{wrong}"
    )


def _open_rig(baseline: str) -> Any:
    """The rig of "torch" or "jax"; "auto": torch where it is installed. RuntimeError where there is none."""
    names = ("torch", "jax") if baseline == "auto" else (baseline,)
    for name in names:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(f"{__package__}._bench_{name}").open_rig()
    raise RuntimeError(
        f"hopgemm bench: {' or '.join(names)} is not installed; it holds the product to compare with"
    )
