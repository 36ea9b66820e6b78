"""The self-test's products through PyTorch: NaN around operands, canaries around results, several streams."""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import math
from typing import Any

import torch

from . import torch as hopgemm_torch
from ._cache import leading
from ._selftest import Case

_CANARY = 77.0
_MARGIN = 64  # elements before and behind a matrix
_STREAMS = 4


class Runner:
    """See `_selftest.Runner`. On `device` "cpu" the same cases check hopgemm's way without a GPU."""

    name = "torch"

    def __init__(self, device: str = "cuda") -> None:
        self._device, self._count = device, 0
        self._started: list[tuple[Case, torch.Tensor]] = []
        self._streams = [torch.cuda.Stream() for _ in range(_STREAMS)] if device == "cuda" else []

    def takes(self, case: Case) -> bool:
        """All."""
        return True

    def start(self, case: Case) -> None:
        """See `_selftest.Runner`: the next stream."""
        self._count += 1
        stream = self._streams[self._count % _STREAMS] if self._streams else None
        with torch.no_grad(), torch.cuda.stream(stream):
            self._started.append((case, _wrong_elements(case, self._device)))

    def finish(self) -> list[tuple[Case, str]]:
        """See `_selftest.Runner`."""
        if self._streams:
            torch.cuda.synchronize()
        started, self._started = self._started, []
        found = []
        for case, counts in started:
            elements, outside = counts.tolist()
            if elements or outside:
                found.append((case, f"{elements} wrong elements, {outside} overwritten beside the result"))
        return found


def _wrong_elements(case: Case, device: str) -> torch.Tensor:
    """(2,) int64: elements of the result that differ, and canaries that are gone."""
    generator = torch.Generator(device=device).manual_seed(case.seed)
    dtype = getattr(torch, case.dtype)
    out_dtype = getattr(torch, case.out_dtype) if case.out_dtype else dtype

    def integers(t: torch.Tensor) -> torch.Tensor:
        return t.copy_(torch.randint(-2, 3, t.shape, generator=generator, device=device))

    def operand(rows: int, cols: int, row_major: bool) -> torch.Tensor:
        return integers(_window(case, rows, cols, row_major, dtype, device, math.nan)[0])

    a = operand(case.m, case.k, case.majors[0] == "k")
    b = operand(case.k, case.n, case.majors[1] == "n")
    out, whole = _window(case, case.m, case.n, True, out_dtype, device, _CANARY)
    added: dict[str, Any] = {}
    want = case.alpha * (a.float() @ b.float())
    if case.beta:
        integers(out)
        want += case.beta * out.float()
        added.update(c=out, beta=case.beta)
    if case.bias:
        bias = integers(torch.empty(case.n, dtype=dtype, device=device))
        want += bias.float()
        added.update(bias=bias)
    hopgemm_torch.matmul(
        a,
        b,
        out=out,
        alpha=case.alpha,
        sm_limit=case.sm_limit,
        batch_invariant=case.batch_invariant,
        config=case.config or None,
        **added,
    )
    wrong = (out != want.to(out_dtype)).sum()
    out.fill_(_CANARY)
    return torch.stack([wrong, (whole != _CANARY).sum()])


def _window(
    case: Case, rows: int, cols: int, row_major: bool, dtype: torch.dtype, device: str, around: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A (batch, rows, cols) view inside a buffer filled with `around`, and the buffer.

    Padded: TMA reads rows in place, with a gap after each; else rows follow each other and start anywhere.
    """
    outer, inner = (rows, cols) if row_major else (cols, rows)
    pitch = leading(inner) + 8 if case.padded else inner
    start = _MARGIN if case.padded else _MARGIN + 1
    copies = max(case.batch, 1)
    whole = torch.full((start + copies * outer * pitch + _MARGIN,), around, dtype=dtype, device=device)
    strides = (pitch, 1) if row_major else (1, pitch)
    batch = ((case.batch,), (outer * pitch,)) if case.batch else ((), ())
    return whole.as_strided((*batch[0], rows, cols), (*batch[1], *strides), start), whole
