"""What tuning needs of PyTorch: operands, an exact reference, kernels in CUDA graphs; and the eager hook."""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from . import _core, _tune
from . import torch as hopgemm_torch
from ._bench_case import graph_launches, rotation_sets
from ._cache import Key, leading
from ._device import device_info
from ._plan import operands
from ._torch_autograd import PLAIN, is_intercepted

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_MAX_SETS = 128
_REFERENCE_WORK = 2**39  # multiplications in fp32 that are no burden: 20 ms
_ROWS_BETWEEN = 64  # else so many rows apart: one of each wgmma's


def current_device() -> int:
    """PyTorch's current GPU. RuntimeError where it sees none, or a CUDA graph is being captured."""
    if not torch.cuda.is_available():
        raise RuntimeError("hopgemm.tune: PyTorch sees no GPU; one of compute capability 9.0 is needed")
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("hopgemm.tune: a CUDA graph is being captured; tune before the capture")
    return torch.cuda.current_device()


@contextmanager
def _undisturbed(device: int) -> Iterator[None]:
    """Outside of what the caller may have around a call: autograd, autocast, another current device."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cuda", enabled=False))
        stack.enter_context(torch.cuda.device(device))
        yield


class Bench:
    """See `_tune.Bench`. Results go to scratch memory, whatever the call that asks does with its own."""

    def __init__(self, key: Key) -> None:
        self._key, self._device = key, current_device()
        self._generator = torch.Generator(device="cuda").manual_seed(0)
        sm_count = device_info(self._device)["sm_count"]
        self._options: dict[str, Any] = {
            "sm_limit": key.sm_count if key.sm_count < sm_count else 0,
            "batch_invariant": key.batch_invariant,
        }
        batch = key.batch_inner * key.batch_outer
        l2_bytes = device_info(self._device)["l2_bytes"]
        count = rotation_sets((batch * key.m, batch * key.n, key.k), l2_bytes, _MAX_SETS)
        # One stream and pool for all graphs, which never run at once: they share a workspace.
        self.stream, self.pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
        with _undisturbed(self._device):
            try:
                self._integers = self._operands(lambda x: x.random_(-2, 3, generator=self._generator))
                self._sets = [
                    self._operands(lambda x: x.normal_(generator=self._generator)) for _ in range(count)
                ]
                self._out = torch.empty(
                    self._shape(key.m, key.n), dtype=_DTYPES[key.out_dtype], device="cuda"
                )
                self._rows = self._rows_to_check()
                self._reference = self._multiply()
            except torch.OutOfMemoryError as error:
                raise RuntimeError(f"hopgemm.tune: not enough memory for {key}: {error}") from None
        product, where = operands(*self._sets[0], self._out)
        where.update(self._options)
        if _core.tuning_key(*product, **where) != key:
            raise RuntimeError(f"hopgemm.tune: PyTorch cannot lay out operands for {key}")

    def _shape(self, rows: int, cols: int) -> tuple[int, ...]:
        outer, inner = self._key.batch_outer, self._key.batch_inner
        return (*([outer] if outer > 1 else []), *([inner] if outer * inner > 1 else []), rows, cols)

    def _operands(self, fill: Any) -> tuple[torch.Tensor, torch.Tensor]:
        def make(rows: int, cols: int, row_major: bool) -> torch.Tensor:
            rows, cols = (rows, cols) if row_major else (cols, rows)
            padded = torch.zeros(
                self._shape(rows, leading(cols)), dtype=_DTYPES[self._key.dtype], device="cuda"
            )
            x = padded[..., :cols]
            fill(x)
            return x if row_major else x.mT

        key = self._key
        return make(key.m, key.k, key.majors[0] == "k"), make(key.k, key.n, key.majors[1] == "n")

    def _rows_to_check(self) -> torch.Tensor:
        """All rows, but of a product whose reference would take long one of every 64, each time another."""
        key = self._key
        count = key.m if self._reference_work() <= _REFERENCE_WORK else math.ceil(key.m / _ROWS_BETWEEN)
        if count == key.m:
            return torch.arange(count, device="cuda")
        first = torch.arange(count, device="cuda") * _ROWS_BETWEEN
        return (first + first // _ROWS_BETWEEN * 7 % _ROWS_BETWEEN).clamp_(max=key.m - 1)

    def _reference_work(self) -> int:
        key = self._key
        return key.batch_inner * key.batch_outer * key.m * key.n * max(key.k, 2048)  # short K: memory

    def _multiply(self) -> torch.Tensor:
        """The integers' product by torch: exact in fp32, and rounded once."""
        a, b = self._integers
        return (a[..., self._rows, :].float() @ b.float()).to(self._out.dtype)

    def _run(self, config: str, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        hopgemm_torch.matmul(*pair, out=self._out, config=config, **self._options)

    def is_exact(self, config: str) -> bool:
        """See `_tune.Bench`."""
        with _undisturbed(self._device):
            self._out.fill_(math.nan)
            self._run(config, self._integers)
            return not self._out.isnan().any() and torch.equal(self._out[..., self._rows, :], self._reference)

    def contender(self, config: str) -> _Contender:
        """See `_tune.Bench`."""
        return _Contender(self, config)


class _Contender:
    """One kernel as a CUDA graph of whole rotations; see `_bench_protocols.Contender`."""

    name = "hopgemm"

    def __init__(self, bench: Bench, config: str) -> None:
        self.config, self._device = config, bench._device
        pairs = graph_launches(bench._sets)
        self._count = len(pairs)
        self._graph = torch.cuda.CUDAGraph()
        with _undisturbed(self._device):
            bench._run(config, bench._sets[0])  # what is loaded once must not be captured
            # Not torch.cuda.graph(), which waits for the GPU and empties torch's cache each time.
            with torch.cuda.stream(bench.stream):
                # HAZARD: the default mode would fail what other threads of the program allocate meanwhile.
                self._graph.capture_begin(pool=bench.pool, capture_error_mode="thread_local")
                try:
                    for pair in pairs:
                        bench._run(config, pair)
                finally:
                    self._graph.capture_end()

    def run(self, launches: int) -> tuple[int, float]:
        """Whole rotations."""
        with torch.cuda.device(self._device):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            replays = math.ceil(launches / self._count)
            first.record()
            for _ in range(replays):
                self._graph.replay()
            last.record()
            last.synchronize()
        return replays * self._count, first.elapsed_time(last) / 1e3


open_bench = Bench


def _is_distributed() -> bool:
    """Are there other processes, that wait for this one's collectives?"""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@functools.cache
def _warn_distributed() -> None:
    warnings.warn(
        "hopgemm.autotune does nothing while torch.distributed has several processes: each would choose for "
        "itself, and the others wait. Tune before, with hopgemm tune, into a file that all of them read",
        RuntimeWarning,
        stacklevel=4,
    )


def _as_rows(a: torch.Tensor) -> torch.Tensor:
    """`a` with its leading dimensions in one, as its gradients' products see it, if its strides allow it."""
    try:
        return a.view(-1, a.shape[-1]) if a.dim() > 2 else a
    except RuntimeError:
        return a


def before_call(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    sm_limit: int,
    batch_invariant: bool,
) -> None:
    """Inside `hopgemm.autotune()`, before a product of matrices runs: tunes it, and the products of its
    gradients. Does nothing under a capture, a transform or a compiler, off the GPU, or (with a warning) in
    one of several processes."""
    if not (type(a) in PLAIN and type(b) in PLAIN and a.is_cuda and a.device == b.device):
        return
    if is_intercepted() or torch.cuda.is_current_stream_capturing():
        return
    if (
        a.dtype != b.dtype
        or a.dtype not in (torch.bfloat16, torch.float16)
        or torch.is_autocast_enabled("cuda")
    ):
        return
    if _is_distributed():
        return _warn_distributed()
    calls = [(a, b, out, out_dtype)]
    if b.dim() == 2:
        a = _as_rows(a)
    if torch.is_grad_enabled() and out is None and a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]:
        grad = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device="meta")
        calls += [(grad, b.mT, None, None)] * a.requires_grad + [(a.mT, grad, None, None)] * b.requires_grad
    for left, right, result, dtype in calls:
        try:
            product, where = operands(left, right, result, dtype)
        except (TypeError, ValueError):  # the call itself will say so
            return
        where.update(device=a.device.index, sm_limit=sm_limit, batch_invariant=batch_invariant)
        with torch.cuda.device(a.device):
            _tune.at_first_use(product, where, open_bench)
