"""The contenders as PyTorch runs them: hopgemm, and cuBLAS through both of torch's backends."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from . import torch as hopgemm_torch
from ._bench_case import (
    TRAINING_LAYOUTS,
    Check,
    error_bound,
    graph_launches,
    rotation_sets,
    sample_rows,
)
from ._device import device_info
from ._plan import plan
from ._shapes import Shape

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_COLUMNS = 8192  # of B in fp64 at a time: half a GB where K is 8192
_SWEEP_BYTES = 4 << 30  # far above any L2

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Operands = tuple[torch.Tensor, torch.Tensor]
Step = tuple[Operands, ...]  # the products of one launch, in turn on one stream


class Reference:
    """Sampled rows of the products of one step in fp64, with what their error may be; computed once."""

    def __init__(self, step: Step, dtype: str) -> None:
        self._step, self._dtype = step, dtype
        self._known: list[list[tuple[slice, torch.Tensor, torch.Tensor]]] = []  # columns, exact, bound

    def check(self, product: Product) -> Check:
        """The worst element of every product."""
        self._known = self._known or [self._compute(a, b) for a, b in self._step]
        worst = 0.0
        for (a, b), known in zip(self._step, self._known, strict=True):
            found = product(a, b)[self._rows(a)]
            for columns, exact, bound in known:
                error = (found[:, columns].double() - exact).abs()
                worst = max(worst, (error / bound).nan_to_num(math.inf).max().item())
        return Check(correct=worst <= 1, worst_error=worst)

    def _compute(self, a: torch.Tensor, b: torch.Tensor) -> list[tuple[slice, torch.Tensor, torch.Tensor]]:
        left, known = a[self._rows(a)].double(), []
        for start in range(0, b.shape[1], _COLUMNS):
            columns = slice(start, start + _COLUMNS)
            right = b[:, columns].double()
            exact = left @ right
            bound = error_bound(exact.abs(), left.abs() @ right.abs(), a.shape[1], self._dtype)
            known.append((columns, exact, bound))
        return known

    def _rows(self, a: torch.Tensor) -> torch.Tensor:
        return torch.tensor(sample_rows(a.shape[0]), device=a.device)


class TorchContender:
    """The products of a step by PyTorch, launched eagerly or as a CUDA graph of whole rotations."""

    def __init__(
        self,
        name: str,
        config: str,
        product: Product,
        sets: list[Step],
        reference: Reference,
        graph: bool,
        backend: str = "",
    ) -> None:
        self.name, self.config, self.timing = name, config, "CUDA graph" if graph else "CUDA events"
        self._product, self._sets, self._reference, self._backend = product, sets, reference, backend
        self._graph_steps = graph_launches(sets)
        self._prepare()
        self._graph = self._capture() if graph else None

    def run(self, launches: int) -> tuple[int, float]:
        """See `_bench_protocols.Contender`; a graph runs whole rotations."""
        self._prepare()
        first, last = _timing_event(), _timing_event()
        first.record()
        if self._graph is None:
            for i in range(launches):
                self._launch(self._sets[i % len(self._sets)])
        else:
            replays = math.ceil(launches / len(self._graph_steps))
            launches = replays * len(self._graph_steps)
            for _ in range(replays):
                self._graph.replay()
        last.record()
        last.synchronize()
        return launches, first.elapsed_time(last) / 1e3

    def check(self) -> Check:
        """Sampled rows of the first set's products against fp64."""
        self._prepare()
        return self._reference.check(self._product)

    def _launch(self, step: Step) -> None:
        for a, b in step:
            self._product(a, b)

    def _prepare(self) -> None:
        if self._backend:
            torch.backends.cuda.preferred_blas_library(self._backend)

    def _capture(self) -> torch.cuda.CUDAGraph:
        self._launch(self._sets[0])  # what the library does once must not be captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for step in self._graph_steps:
                self._launch(step)
        return graph


class TorchCase:
    """One shape's operands, and the contenders on them. layout: one of `_bench_case.LAYOUTS`."""

    def __init__(self, sets: list[Step], dtype: str, layout: str, graph: bool) -> None:
        self.sets, self.dtype, self.layout, self._graph = sets, dtype, layout, graph
        self._reference = Reference(sets[0], dtype)

    def baselines(self) -> list[TorchContender]:
        """cuBLAS through each of torch's two backends."""
        return [self.contender("cublas", backend, torch.mm, backend) for backend in ("cublas", "cublaslt")]

    def hopgemm(self, config: str, batch_invariant: bool = False) -> TorchContender:
        """hopgemm in that configuration, "" for its own choice. ValueError where it cannot run this shape."""
        invariant = batch_invariant or None  # an option that is not None leaves the shortest way into a call

        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return hopgemm_torch.matmul(a, b, config=config or None, batch_invariant=invariant)

        name = "batch_invariant" if batch_invariant else "hopgemm"
        return self.contender(name, self.chosen(config, batch_invariant), product)

    def chosen(self, config: str, batch_invariant: bool) -> str:
        """Names of the kernels that hopgemm would run, one for each product of a step."""
        invariant = batch_invariant or None
        plans = (plan(a, b, config=config or None, batch_invariant=invariant) for a, b in self.sets[0])
        return " ".join(p.config for p in plans)

    def contender(self, name: str, config: str, product: Product, backend: str = "") -> TorchContender:
        """Any other way to multiply two tensors."""
        return TorchContender(name, config, product, self.sets, self._reference, self._graph, backend)


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

        def normal(rows: int, cols: int, row_major: bool = True) -> torch.Tensor:
            size = (rows, cols) if row_major else (cols, rows)
            x = torch.randn(size, generator=generator, device="cuda", dtype=_DTYPES[dtype])
            return x if row_major else x.T

        def step() -> Step:
            if layout in TRAINING_LAYOUTS:
                return training_step(normal(m, k), normal(k, n, layout == "training-kn"), normal(m, n))
            return ((normal(m, k, layout[0] == "k"), normal(k, n, layout[1] == "n")),)

        count = rotation_sets(shape, device_info(self.device)["l2_bytes"])
        return TorchCase([step() for _ in range(count)], dtype, layout, graph)

    def memory_roof(self) -> float:
        """Bytes a second of a read-only sweep: the better of two reductions over 4 GiB."""
        x = torch.ones(_SWEEP_BYTES // 4, device="cuda")
        best = 0.0
        for reduction in (torch.sum, torch.amax):
            sets: list[Step] = [((x, x),)]
            contender = TorchContender("sweep", "", _of_first(reduction), sets, Reference(sets[0], ""), False)
            contender.run(2)
            best = max(
                best, *(_SWEEP_BYTES * n / seconds for n, seconds in (contender.run(5) for _ in range(5)))
            )
        return best

    def release(self) -> None:
        """Gives the memory of the last case back."""
        torch.cuda.empty_cache()


def training_step(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> Step:
    """Forward, dgrad and wgrad of x @ w; the weight's gradient lies in memory as the weight does."""
    w_is_nk = w.stride(0) == 1
    return ((x, w), (dy, w.T), (dy.T, x) if w_is_nk else (x.T, dy))


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _of_first(reduction: Callable[[torch.Tensor], torch.Tensor]) -> Product:
    return lambda x, _: reduction(x)


def open_rig() -> TorchRig:
    """The rig of this framework. RuntimeError where it sees no GPU."""
    return TorchRig()
