"""SM clock, power and energy of one GPU: by NVML (nvidia-ml-py), else by nvidia-smi, else nothing."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Reading:
    """Of one stretch of time; None: could not be read."""

    sm_clock_mhz: float | None = None
    watts: float | None = None


@dataclass
class Sampling:
    """Filled when the stretch has ended."""

    value: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Meter:
    """Reads a GPU in the background.

    read: SM clock in MHz and power in W, now. joules: the energy counter; None where there is none.
    """

    source: str = "none"
    read: Callable[[], tuple[float, float]] | None = None
    joules: Callable[[], float | None] = lambda: None
    facts: dict[str, Any] = field(default_factory=dict)
    period_s: float = 0.005

    @contextlib.contextmanager
    def sample(self) -> Iterator[Sampling]:
        """Samples for the length of the block: the clock's median, and the power's over the second half, when
        the board's own averaging over a second has caught up."""
        sampling = Sampling()
        if self.read is None:
            yield sampling
            return
        samples: list[tuple[float, float]] = []
        ended = threading.Event()
        thread = threading.Thread(
            target=_collect, args=(self.read, samples, ended, self.period_s), daemon=True
        )
        thread.start()
        try:
            yield sampling
        finally:
            ended.set()
            thread.join()
        if samples:
            late = samples[len(samples) // 2 :]
            sampling.value = Reading(
                median(clock for clock, _ in samples), median(watts for _, watts in late)
            )


def _collect(
    read: Callable[[], tuple[float, float]],
    samples: list[tuple[float, float]],
    ended: threading.Event,
    period_s: float,
) -> None:
    while not ended.wait(period_s):
        with contextlib.suppress(Exception):  # one missed sample is no reason to lose a measurement
            samples.append(read())


def open_meter(uuid: str | None) -> Meter:
    """A meter for the GPU with that UUID ("GPU-..."), or for the only one."""
    return _nvml_meter(uuid) or _smi_meter(uuid) or Meter()


def _nvml_meter(uuid: str | None) -> Meter | None:
    try:
        import pynvml as nvml  # type: ignore[import-not-found,import-untyped,unused-ignore]

        nvml.nvmlInit()
        if not uuid and nvml.nvmlDeviceGetCount() != 1:
            return None  # it could be any of them
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(0)
        driver = nvml.nvmlSystemGetDriverVersion()
    except Exception:  # not installed, or no driver that it likes
        return None

    def ask(function: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, function)(handle, *arguments)
        except nvml.NVMLError:
            return None

    def read() -> tuple[float, float]:
        clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        return float(clock), nvml.nvmlDeviceGetPowerUsage(handle) / 1e3

    def joules() -> float | None:
        millijoules = ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1e3

    limit = ask("nvmlDeviceGetEnforcedPowerLimit")
    return Meter(
        source="nvml",
        read=read if ask("nvmlDeviceGetPowerUsage") is not None else None,
        joules=joules,
        facts={
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
            "max_sm_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
            "power_limit_watts": None if limit is None else limit / 1e3,
        },
    )


def _smi_meter(uuid: str | None) -> Meter | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None

    def query(fields: str) -> list[str]:
        command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id={uuid or 0}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.split(
            ", "
        )

    def read() -> tuple[float, float]:
        clock, watts = query("clocks.sm,power.draw")
        return float(clock), float(watts)

    try:
        driver, *numbers = query("driver_version,clocks.max.sm,clocks.max.memory,power.limit")
        max_sm, memory, limit = map(float, numbers)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    facts = {
        "driver": driver,
        "max_sm_clock_mhz": max_sm,
        "memory_clock_mhz": memory,
        "power_limit_watts": limit,
    }
    return Meter(source="nvidia-smi", read=read, facts=facts, period_s=0.1)
