"""`hopgemm bench`: shape by shape, hopgemm beside cuBLAS, and the records it leaves.

One record per contender and shape. Which shapes: `_shapes`. How to time: `_bench_protocols`. How to run a
product: `_bench_torch` and `_bench_jax`. The file of results: `_bench_results`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import _bench_protocols as protocols
from . import _core
from ._bench_case import Check, bytes_moved
from ._bench_meter import Meter, open_meter
from ._bench_results import Results
from ._shapes import BIG_SQUARES, Shape, format_shape

_FLOPS_PER_SM_AND_CLOCK = 4096  # dense 16-bit tensor cores of compute capability 9.0
_SUSTAINED_FROM_S = 1e-3
_TYPICAL_FLOPS = 660e12  # a second: only decides which protocol a shape falls under
_PROBE_ROUNDS = 3
_COOL_ROOF_S = 0.02  # too short to reach the power limit


@dataclass(frozen=True)
class Roofs:
    """What the chip can do at most: a read-only sweep of memory; bare wgmma, cool and power limited."""

    memory_bytes_per_s: float
    tensor_flops_cool: float
    tensor_flops_sustained: float

    def seconds(self, shape: Shape, protocol: str) -> float:
        """The least time a product can take."""
        m, n, k = shape
        tensor = self.tensor_flops_sustained if protocol == "sustained" else self.tensor_flops_cool
        return max(2.0 * m * n * k / tensor, bytes_moved(shape) / self.memory_bytes_per_s)


@dataclass(frozen=True)
class Task:
    """What to measure. protocol: "auto" or one of `_bench_protocols`; configs: "" lets hopgemm choose."""

    shapes: Sequence[Shape]
    dtype: str = "bf16"
    layout: str = "kk"
    protocol: str = "auto"
    configs: Sequence[str] = ("",)
    seconds_per_shape: float = 0.0


def protocol_of(shape: Shape, protocol: str) -> str:
    """What "auto" stands for: sustained for the three big squares and over about 1 ms, else single."""
    if protocol != "auto":
        return protocol
    m, n, k = shape
    is_long = 2.0 * m * n * k / _TYPICAL_FLOPS >= _SUSTAINED_FROM_S
    return "sustained" if is_long or shape in BIG_SQUARES else "single"


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
            protocol = protocol_of(shape, self.task.protocol)
            group = {
                "shape": format_shape(shape),
                "dtype": self.task.dtype,
                "layout": self.task.layout,
                "protocol": protocol,
                "framework": self.rig.name,
            }
            if self.results.has(group, self.task.configs):
                report(f"{group['shape']} {protocol}: already there")
                continue
            records = self._measure_shape(shape, protocol)
            self.rig.release()
            self.results.add({**group, **record} for record in records)
            for record in records:
                good = good and record["error"] is None and record["correct"]
                report(f"{group['shape']} {protocol}: {_one_line(record)}")
        return good

    def _measure_shape(self, shape: Shape, protocol: str) -> list[dict[str, Any]]:
        failures: list[dict[str, Any]] = []
        case = self.rig.case(shape, self.task.dtype, self.task.layout, graph=protocol == "single")
        contenders, requests = [_faster(case.baselines())], [""]
        for config in self.task.configs:
            try:
                contenders.append(case.hopgemm(config))
                requests.append(config)
            except (ValueError, RuntimeError) as error:  # this kernel cannot run this shape; the others may
                failures.append(_failure(config, error))
        checks = [contender.check() for contender in contenders]
        timed = protocols.run(
            protocol,
            contenders,
            self.meter,
            seconds=self.task.seconds_per_shape,
            energy=protocol == "sustained" and shape in BIG_SQUARES,
        )
        rows = zip(contenders, requests, checks, timed, strict=True)
        return [self._record(shape, protocol, *row, timed[0].seconds) for row in rows] + failures

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
        tera = 2e-12 * shape[0] * shape[1] * shape[2]
        clock = result.reading("sm_clock_mhz")
        peak = self.sm_count * _FLOPS_PER_SM_AND_CLOCK * (clock or 0.0) * 1e-6  # TFLOP/s at that clock
        return {
            "contender": contender.name,
            "config": contender.config,
            "requested": request,
            "tflops": tera / result.seconds,
            "microseconds": result.seconds * 1e6,
            "ratio_to_cublas": cublas_s / result.seconds,
            "ratio_to_roof": self.roofs.seconds(shape, protocol) / result.seconds,
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


def _failure(config: str, error: Exception) -> dict[str, Any]:
    nothing = dict.fromkeys(
        (
            "tflops",
            "microseconds",
            "ratio_to_cublas",
            "ratio_to_roof",
            "sm_clock_mhz",
            "watts",
            "mj_per_tflop",
        )
        + ("utilisation", "correct", "worst_error", "rounds", "spread")
    )
    return {"contender": "hopgemm", "config": config, "requested": config, **nothing, "error": str(error)}


def _one_line(record: dict[str, Any]) -> str:
    if record["error"] is not None:
        return f"{record['contender']} {record['config']}: {record['error']}"
    wrong = "" if record["correct"] else "  WRONG RESULT"
    return (
        f"{record['contender']:8} {record['tflops']:7.1f} TFLOP/s {record['ratio_to_cublas']:6.3f} of cuBLAS"
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
