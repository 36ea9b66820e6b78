"""The contenders as JAX runs them under jit: hopgemm, and XLA's own product through cuBLAS."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from importlib.metadata import version

# XLA would otherwise take its own Triton kernels for cuBLAS where it likes them better.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_enable_triton_gemm=false"

import jax
import jax.numpy as jnp
import numpy as np

from . import jax as hopgemm_jax
from ._bench_case import TRAINING_LAYOUTS, Check, error_bound, rotation_sets, sample_rows
from ._device import device_info
from ._plan import plan
from ._shapes import Shape

_DTYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16}
_CHECK_COLUMNS = 1024  # on the host, so not all of them
_SWEEP_BYTES = 4 << 30
_MAX_SETS = 128  # XLA compiles each; smaller products than 512^3 then find operands in the L2

Product = Callable[[jax.Array, jax.Array], jax.Array]
Operands = tuple[jax.Array, jax.Array]


class JaxContender:
    """One product of operands as they are stored, compiled into a program that computes it for every set."""

    def __init__(
        self, name: str, config: str, product: Product, sets: list[Operands], dtype: str, layout: str = "kn"
    ) -> None:
        self.name, self.config, self.timing = name, config, "host clock"
        self._sets, self._dtype, self._layout = sets, dtype, layout
        # All results are returned, so XLA can leave none out.
        program = jax.jit(lambda sets: [product(*pair) for pair in sets])
        self._program = program.lower(sets).compile()

    def run(self, launches: int) -> tuple[int, float]:
        """See `_bench_protocols.Contender`; the host's clock, whole rotations."""
        calls = math.ceil(launches / len(self._sets))
        start = time.perf_counter()
        for _ in range(calls):
            results = self._program(self._sets)
        jax.block_until_ready(results)  # type: ignore[no-untyped-call]
        return calls * len(self._sets), time.perf_counter() - start

    def check(self) -> Check:
        """Sampled rows and columns of the first set's product against fp64, on the host."""
        a, b = oriented(self._sets[0], self._layout)
        rows = np.array(sample_rows(a.shape[0]))
        columns = np.array(sample_rows(b.shape[1], _CHECK_COLUMNS))
        found = np.asarray(self._program(self._sets)[0][rows][:, columns], np.float64)
        left, right = np.asarray(a[rows], np.float64), np.asarray(b[:, columns], np.float64)
        exact = left @ right
        bound = error_bound(abs(exact), abs(left) @ abs(right), a.shape[1], self._dtype)
        worst = float(np.nan_to_num(abs(found - exact) / bound, nan=math.inf).max())
        return Check(correct=worst <= 1, worst_error=worst)


class JaxCase:
    """One shape's operands, as they are stored, and the contenders on them."""

    def __init__(self, sets: list[Operands], dtype: str, layout: str, device: int = 0) -> None:
        self._sets, self.dtype, self.layout, self._device = sets, dtype, layout, device

    def baselines(self) -> list[JaxContender]:
        """XLA's product, which it hands to cuBLAS."""
        return [self._contender("cublas", "xla", lambda a, b: jnp.matmul(*oriented((a, b), self.layout)))]

    def hopgemm(self, config: str, batch_invariant: bool = False) -> JaxContender:
        """hopgemm in that configuration, "" for its own choice. ValueError where it cannot run this shape."""
        # By dimension numbers: a transpose before the custom call would be a kernel of its own.
        contracted = ((int(self.layout[0] == "k"),), (int(self.layout[1] == "k"),))
        invariant = batch_invariant or None
        product = hopgemm_jax.dot_general_with(config=config or None, batch_invariant=invariant)
        return self._contender(
            "batch_invariant" if batch_invariant else "hopgemm",
            self.chosen(config, batch_invariant),
            lambda a, b: product(a, b, (contracted, ((), ()))),
        )

    def chosen(self, config: str, batch_invariant: bool) -> str:
        """Name of the kernel that hopgemm would run."""
        (m, k), (_, n) = (x.shape for x in oriented(self._sets[0], self.layout))
        return plan(
            m=m,
            n=n,
            k=k,
            dtype=self.dtype,
            majors=self.layout,
            config=config or None,
            batch_invariant=batch_invariant or None,
            device=self._device,
        ).config

    def _contender(self, name: str, config: str, product: Product) -> JaxContender:
        return JaxContender(name, config, product, self._sets, self.dtype, self.layout)


class JaxRig:
    """Measures on JAX's first GPU."""

    name = "jax"

    def __init__(self) -> None:
        if jax.default_backend() != "gpu":
            raise RuntimeError("hopgemm bench: JAX sees no GPU; a GPU of compute capability 9.0 is needed")
        self.uuid: str | None = None  # JAX does not tell
        self.versions = {"jax": jax.__version__, "jaxlib": version("jaxlib")}
        self.device = jax.devices()[0].local_hardware_id

    def case(self, shape: Shape, dtype: str, layout: str, graph: bool) -> JaxCase:
        """Normal random operands of that layout, as many as outrun the L2. Compiled, so `graph` is moot.

        ValueError for a training step.
        """
        if layout in TRAINING_LAYOUTS:
            raise ValueError(f"hopgemm bench: layout {layout} is measured through PyTorch: --baseline torch")
        m, n, k = shape
        count = rotation_sets(shape, device_info(self.device)["l2_bytes"], _MAX_SETS)
        sizes = ((m, k) if layout[0] == "k" else (k, m)), ((k, n) if layout[1] == "n" else (n, k))
        keys = jax.random.split(jax.random.key(0), 2 * count)
        arrays = [jax.random.normal(key, sizes[i % 2], _DTYPES[dtype]) for i, key in enumerate(keys)]
        return JaxCase(list(zip(arrays[::2], arrays[1::2], strict=True)), dtype, layout, self.device)

    def memory_roof(self) -> float:
        """Bytes a second of a read-only sweep over 4 GiB."""
        x = jnp.ones(_SWEEP_BYTES // 4, jnp.float32)
        contender = JaxContender("sweep", "", lambda x, _: jnp.sum(x), [(x, x)], "")
        contender.run(2)
        return max(_SWEEP_BYTES * n / seconds for n, seconds in (contender.run(20) for _ in range(5)))

    def release(self) -> None:
        """Drops the programs of the last case."""
        jax.clear_caches()  # type: ignore[no-untyped-call]


def oriented(pair: Operands, layout: str) -> Operands:
    """A as (M, K) and B as (K, N), however they are stored."""
    a, b = pair
    return (a if layout[0] == "k" else a.T), (b if layout[1] == "n" else b.T)


def open_rig() -> JaxRig:
    """The rig of this framework. RuntimeError where it sees no GPU."""
    return JaxRig()
