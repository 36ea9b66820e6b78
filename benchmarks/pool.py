"""Several GPUs at once: one process for each, which takes a job whenever it has done one.

A record, with its cuBLAS, comes from one process on one card. A process that dies or hangs costs its job
alone: the next job gets a new process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs import Job

_START_LIMIT_S, _END_LIMIT_S = 240.0, 30.0
_PATIENCE_S, _PATIENCE = 120.0, 3.0  # a job may take so long, and so many times what is expected
WORKER = (sys.executable, str(Path(__file__).with_name("worker.py")))


class Worker:
    """One process on one GPU."""

    def __init__(self, command: Sequence[str], gpu: str) -> None:
        """RuntimeError where it does not come up; what it says stands on standard error."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
        )
        if self._answer(_START_LIMIT_S) is None:
            raise RuntimeError(f"the process for GPU {gpu} did not start: see above")

    def measure(self, job: Job) -> dict[str, Any] | None:
        """Its answer; None where the process died or took far too long, and is no more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return None
        return self._answer(_PATIENCE_S + _PATIENCE * job.expected_s)

    def close(self) -> None:
        """Ends the process, which has nothing to do; its records are saved."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answer(self, limit_s: float) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        watchdog = threading.Timer(limit_s, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        if not line:
            self._process.wait()
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer


class Pool:
    """Jobs in their order, for as many GPUs as there are parts (files of records)."""

    def __init__(
        self, jobs: Sequence[Job], parts: Sequence[Path], budget_s: float, report: Callable[[str], None]
    ) -> None:
        """budget_s: no job is begun that is not expected to end within so many seconds from now."""
        self.left, self.ok = list(jobs), True
        self._parts, self._report, self._count = parts, report, len(jobs)
        self._start, self._budget_s = time.monotonic(), budget_s
        self._lock = threading.Lock()

    def run(self, worker: Sequence[str] = WORKER) -> bool:
        """Measures; `left` is what the budget left out. False if anything failed."""
        threads = [
            threading.Thread(target=self._serve, args=([*worker, str(part)], gpu))
            for part, gpu in zip(self._parts, visible_gpus(len(self._parts)), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.ok

    def _serve(self, command: Sequence[str], gpu: str) -> None:
        try:
            worker = Worker(command, gpu)
            while (job := self._take()) is not None:
                answer = worker.measure(job)
                if answer is None:
                    self._say([f"{' '.join(job.key)}: LOST, the process on GPU {gpu} died or hung"], ok=False)
                    worker = Worker(command, gpu)
                else:
                    self._say(answer["lines"], answer["ok"])
            worker.close()
        except RuntimeError as error:
            self._say([str(error)], ok=False)

    def _take(self) -> Job | None:
        """The first job for which there is time."""
        with self._lock:
            remaining = self._budget_s - (time.monotonic() - self._start)
            job = next((job for job in self.left if job.expected_s <= remaining), None)
            if job is not None:
                self.left.remove(job)
            return job

    def _say(self, lines: Sequence[str], ok: bool) -> None:
        with self._lock:
            self.ok = self.ok and ok
            where = f"[{self._count - len(self.left)}/{self._count} {time.monotonic() - self._start:.0f} s]"
            for line in lines:
                self._report(f"{where} {line}")


def visible_gpus(count: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to be for each process: of the visible GPUs the first ones."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:count] if visible else [str(i) for i in range(count)]
