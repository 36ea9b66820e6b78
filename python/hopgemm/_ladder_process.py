"""One climb of `hopgemm ladder` in a process of its own, on PyTorch's current GPU.

`_ladder` starts `python -c "..." JOB` with `main()`; JOB is JSON, and so is every line that comes back.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

WARMUP, LAUNCHES = 5, 30
HALF_SUMS = "fp16acc"  # the rung that rounds every partial sum to fp16
_HALF_SUMS_BOUND = 0.25  # of the result's standard deviation; a wrong tile is off by more than 1
_COLUMNS = 4096  # of B in fp64 at a time


def main() -> None:
    """Measures what argv[1] asks for (the arguments of `climb`), a line of JSON for each contender."""
    for row in climb(**json.loads(sys.argv[1])):
        print(json.dumps(row), flush=True)


def climb(size: int, dtype: str, rungs: list[str], rest: float) -> Iterator[dict[str, Any]]:
    """cuBLAS, then the rungs, at size^3.

    Each is checked, rested before for `rest` seconds, warmed up, and timed over 30 launches. Operands are
    uniform in +-0.5 / sqrt(K), A (M, K) and B (N, K).

    Yields:
      `{"rung", "tflops", "correct", "mean_error", "max_error"}`; "rung" is "cublas" for the first. Errors are
      in standard deviations of the result.
    """
    import torch

    from . import _rungs

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    generator = torch.Generator(device="cuda").manual_seed(0)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    a, b = (
        ((torch.rand(size, size, generator=generator, device="cuda") - 0.5) / math.sqrt(size)).to(kind)
        for _ in range(2)
    )
    out = torch.empty(size, size, device="cuda", dtype=kind)
    stream = torch.cuda.current_stream().cuda_stream
    reference = _Reference(a, b, dtype)

    def launch_of(rung: str) -> Callable[[], object]:
        if rung == "cublas":
            return lambda: torch.mm(a, b.T, out=out)
        return lambda: _rungs.run(rung, a, b, out, stream)

    for rung in ["cublas", *rungs]:
        launch = launch_of(rung)
        out.fill_(math.nan)
        launch()
        check = reference.check(out, half_sums=rung == HALF_SUMS)
        time.sleep(rest)
        yield {"rung": rung, "tflops": 2e-12 * size**3 / _seconds(launch), **check}


def _seconds(launch: Callable[[], object]) -> float:
    """Of one launch, on average."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for _ in range(WARMUP):
        launch()
    first.record()
    for _ in range(LAUNCHES):
        launch()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / LAUNCHES


class _Reference:
    """Sampled rows of the product in fp64, and the error that fp32 sums and one rounding allow."""

    def __init__(self, a: Any, b: Any, dtype: str) -> None:
        import torch

        from ._bench_case import error_bound, sample_rows

        self._rows = torch.tensor(sample_rows(a.shape[0]), device=a.device)
        left = a[self._rows].double()
        columns = [b[start : start + _COLUMNS].double().T for start in range(0, b.shape[0], _COLUMNS)]
        self._exact = torch.cat([left @ right for right in columns], dim=1)
        magnitude = torch.cat([left.abs() @ right.abs() for right in columns], dim=1)
        self._bound = error_bound(self._exact.abs(), magnitude, a.shape[1], dtype)
        self._deviation = self._exact.std()

    def check(self, out: Any, half_sums: bool) -> dict[str, Any]:
        error = (out[self._rows].double() - self._exact).abs()
        bound = self._bound + _HALF_SUMS_BOUND * self._deviation if half_sums else self._bound
        relative = error.nan_to_num(math.inf) / self._deviation
        return {
            "correct": bool((error <= bound).all()),  # false for NaN
            "mean_error": float(relative.mean()),
            "max_error": float(relative.max()),
        }
