"""The contenders as PyTorch runs them: hopgemm, and cuBLAS through both of torch's backends."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from . import torch as hopgemm_torch
from ._bench_case import Check, error_bound, rotation_sets, sample_rows
from ._device import device_info
from ._plan import plan
from ._shapes import Shape

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_COLUMNS = 8192  # of B in fp64 at a time: half a GB where K is 8192
_SWEEP_BYTES = 4 << 30  # far above any L2

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Operands = tuple[torch.Tensor, torch.Tensor]


class TorchContender:
    """One product of PyTorch, launched eagerly or as a CUDA graph over all sets of operands."""

    def __init__(
        self,
        name: str,
        config: str,
        product: Product,
        sets: list[Operands],
        dtype: str,
        graph: bool,
        backend: str = "",
    ) -> None:
        self.name, self.config = name, config
        self._product, self._sets, self._dtype, self._backend = product, sets, dtype, backend
        self._prepare()
        self._graph = self._capture() if graph else None

    def run(self, launches: int) -> tuple[int, float]:
        """See `_bench_protocols.Contender`; a graph runs whole rotations."""
        self._prepare()
        first, last = _timing_event(), _timing_event()
        first.record()
        if self._graph is None:
            for i in range(launches):
                self._product(*self._sets[i % len(self._sets)])
        else:
            replays = math.ceil(launches / len(self._sets))
            launches = replays * len(self._sets)
            for _ in range(replays):
                self._graph.replay()
        last.record()
        last.synchronize()
        return launches, first.elapsed_time(last) / 1e3

    def check(self) -> Check:
        """Sampled rows of the first set's product against fp64."""
        self._prepare()
        a, b = self._sets[0]
        rows = torch.tensor(sample_rows(a.shape[0]), device=a.device)
        found, left = self._product(a, b)[rows], a[rows].double()
        worst = 0.0
        for start in range(0, b.shape[1], _COLUMNS):
            columns = slice(start, start + _COLUMNS)
            right = b[:, columns].double()
            exact = left @ right
            bound = error_bound(exact.abs(), left.abs() @ right.abs(), a.shape[1], self._dtype)
            error = (found[:, columns].double() - exact).abs()
            worst = max(worst, (error / bound).nan_to_num(math.inf).max().item())
        return Check(correct=worst <= 1, worst_error=worst)

    def _prepare(self) -> None:
        if self._backend:
            torch.backends.cuda.preferred_blas_library(self._backend)

    def _capture(self) -> torch.cuda.CUDAGraph:
        self._product(*self._sets[0])  # what the library does once must not be captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for a, b in self._sets:
                self._product(a, b)
        return graph


class TorchCase:
    """One shape's operands, and the contenders on them."""

    def __init__(self, sets: list[Operands], dtype: str, graph: bool) -> None:
        self._sets, self._dtype, self._graph = sets, dtype, graph

    def baselines(self) -> list[TorchContender]:
        """cuBLAS through each of torch's two backends."""
        return [self._contender("cublas", backend, torch.mm, backend) for backend in ("cublas", "cublaslt")]

    def hopgemm(self, config: str) -> TorchContender:
        """hopgemm in that configuration, "" for its own choice. ValueError where it cannot run this shape."""
        name = plan(*self._sets[0], config=config or None).config

        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return hopgemm_torch.matmul(a, b, config=config or None)

        return self._contender("hopgemm", name, product)

    def _contender(self, name: str, config: str, product: Product, backend: str = "") -> TorchContender:
        return TorchContender(name, config, product, self._sets, self._dtype, self._graph, backend)


class TorchRig:
    """Measures on PyTorch's current GPU."""

    name = "torch"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError(
                "hopgemm bench: PyTorch sees no GPU; a GPU of compute capability 9.0 is needed"
            )
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self.device = torch.cuda.current_device()
        self.uuid: str | None = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
        self.versions = {"torch": torch.__version__, "cuda": torch.version.cuda}

    def case(self, shape: Shape, dtype: str, layout: str, graph: bool) -> TorchCase:
        """Normal random operands of that layout, as many as outrun the L2."""
        m, n, k = shape
        generator = torch.Generator(device="cuda").manual_seed(0)

        def normal(rows: int, cols: int, row_major: bool) -> torch.Tensor:
            size = (rows, cols) if row_major else (cols, rows)
            x = torch.randn(size, generator=generator, device="cuda", dtype=_DTYPES[dtype])
            return x if row_major else x.T

        count = rotation_sets(shape, device_info(self.device)["l2_bytes"])
        sets = [(normal(m, k, layout[0] == "k"), normal(k, n, layout[1] == "n")) for _ in range(count)]
        return TorchCase(sets, dtype, graph)

    def memory_roof(self) -> float:
        """Bytes a second of a read-only sweep: the better of two reductions over 4 GiB."""
        x = torch.ones(_SWEEP_BYTES // 4, device="cuda")
        best = 0.0
        for reduction in (torch.sum, torch.amax):
            contender = TorchContender("sweep", "", _of_first(reduction), [(x, x)], "", False)
            contender.run(2)
            best = max(
                best, *(_SWEEP_BYTES * n / seconds for n, seconds in (contender.run(5) for _ in range(5)))
            )
        return best

    def release(self) -> None:
        """Gives the memory of the last case back."""
        torch.cuda.empty_cache()


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _of_first(reduction: Callable[[torch.Tensor], torch.Tensor]) -> Product:
    return lambda x, _: reduction(x)


def open_rig() -> TorchRig:
    """The rig of this framework. RuntimeError where it sees no GPU."""
    return TorchRig()
