"""`hopgemm demo`: one product through PyTorch and through JAX, and what computed it.

Without a Hopper GPU also a small one by the CUDA kernel's own source on the emulated machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from . import _core, matmul, plan
from ._bench_case import error_bound, sample_rows

_SECONDS = 0.3  # of timing
_GPU_SIZE, _CPU_SIZE = 4096, 512
_EMULATED = (300, 520, 200)  # M, N, K: several tiles, and a tail in each dimension


@dataclass
class Row:
    """One framework's line. `results`: sampled rows of the random and the exact product, for the bits."""

    framework: str
    device: str = ""
    computed_by: str = ""
    exact: bool | None = None
    error: float | None = None
    tflops: float | None = None
    own_tflops: float | None = None
    problem: str | None = None
    results: Any = None

    @property
    def good(self) -> bool:
        """Computed, and right."""
        return self.problem is None and bool(self.exact) and self.error is not None and self.error <= 1


@dataclass
class _Framework:
    """What the demo needs of a framework. `to_array` copies NumPy's float32 to bfloat16 on the device."""

    device: str
    is_hopper: bool
    own_name: str
    to_array: Callable[[Any], Any]
    to_numpy: Callable[[Any], Any]
    ours: Callable[[Any, Any], Any]
    own: Callable[[Any, Any], Any]
    wait: Callable[[Any], Any]


def run(size: int | None = None) -> dict[str, Any]:
    """Multiplies size x size bfloat16 matrices (4096 on a Hopper GPU, else 512) in each framework."""
    on_gpu = _core.device_count() > 0 and tuple(_core.device_info(0)["compute_capability"]) == (9, 0)
    size = size or (_GPU_SIZE if on_gpu else _CPU_SIZE)
    rows = [
        _row(name, size, opener) if importlib.util.find_spec(name) else Row(name, problem="not installed")
        for name, opener in (("torch", _open_torch), ("jax", _open_jax))
    ]
    there = [row for row in rows if row.problem != "not installed"]
    emulated = None if on_gpu else _emulated_row()
    right = all(row.good for row in there) and (emulated is None or bool(emulated.exact))
    return {
        "size": size,
        "rows": rows,
        "emulated": emulated,
        "bits": _compare(rows),
        "ok": bool(there) and right and _compare(rows) != "different",
    }


def as_json(result: dict[str, Any]) -> dict[str, Any]:
    """The result without the arrays."""

    def plain(row: Row) -> dict[str, Any]:
        return {k: v for k, v in asdict(row).items() if k != "results"}

    emulated = result["emulated"]
    return {
        **result,
        "rows": [plain(row) for row in result["rows"]],
        "emulated": emulated and plain(emulated),
    }


def render(result: dict[str, Any]) -> str:
    """The table."""
    size = result["size"]
    lines = [f"{size} x {size} x {size}, bfloat16, A (M, K) and B (N, K).T", ""]
    table = [("framework", "on", "exact", "error", "TFLOP/s", "its own", "computed by")]
    for row in [*result["rows"], *filter(None, [result["emulated"]])]:
        if row.problem:
            table.append((row.framework, row.device or "-", "-", "-", "-", "-", row.problem))
        else:
            numbers = tuple(
                "-" if x is None else format(x, form)
                for x, form in ((row.error, ".2f"), (row.tflops, ".3g"), (row.own_tflops, ".3g"))
            )
            table.append((row.framework, row.device, "yes" if row.exact else "NO", *numbers, row.computed_by))
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]
    lines += [
        "",
        "exact: integers whose product fits, compared bit for bit.  error: the largest against fp64, as a",
        "part of what one rounding and fp32 sums allow.  its own: the framework's own product.",
    ]
    if result["bits"]:
        lines.append(f"torch and jax: {result['bits']}")
    return "\n".join(lines)


def _emulated_row() -> Row:
    import numpy as np

    from ._emulate import emulate

    m, n, k = _EMULATED
    row = Row("none", device="emulator")
    try:
        random = np.random.default_rng(0)
        a, b = (random.integers(-2, 3, s).astype(np.float16) for s in ((m, k), (k, n)))
        found = emulate(a, b, sm_count=4, log=False)
        row.computed_by = f"hopgemm kernel {found.config}, {m} x {n} x {k} on 4 emulated SMs"
        row.exact = bool(
            np.array_equal(found.product.astype(np.float32), a.astype(np.float32) @ b.astype(np.float32))
        )
    except Exception as error:  # as in _row
        row.problem = f"{type(error).__name__}: {error}"
    return row


def _compare(rows: list[Row]) -> str | None:
    import numpy as np

    if any(row.results is None for row in rows):
        return None
    (random, exact), (other_random, other_exact) = (row.results for row in rows)
    if not np.array_equal(exact, other_exact):
        return "different"
    if all(row.computed_by.startswith("hopgemm") for row in rows):
        return "the same bits, on random data too" if np.array_equal(random, other_random) else "different"
    return "the same bits on exact data"


def _row(name: str, size: int, opener: Callable[[], _Framework]) -> Row:
    import numpy as np

    row = Row(f"{name} {importlib.metadata.version(name)}")
    try:
        framework = opener()
        row.device = framework.device
        row.computed_by = f"{framework.own_name} on the CPU, in float32 (hopgemm's way without a Hopper GPU)"
        if framework.is_hopper:
            row.computed_by = f"hopgemm kernel {plan(m=size, n=size, k=size, device=0).config}"
        random = np.random.default_rng(0)
        rows = sample_rows(size)
        a, b = (framework.to_array(random.standard_normal((size, size), np.float32)) for _ in range(2))
        left, right = (framework.to_numpy(x).astype(np.float64) for x in (a, b))
        found = framework.to_numpy(framework.ours(a, b))[rows]
        exact = left[rows] @ right.T
        bound = error_bound(abs(exact), abs(left[rows]) @ abs(right.T), size, "bf16")
        row.error = float(np.nan_to_num(abs(found - exact) / bound, nan=np.inf).max())
        whole = _integers(random, size)
        integers = framework.to_numpy(framework.ours(*map(framework.to_array, whole)))[rows]
        row.exact = bool(np.array_equal(integers, whole[0][rows] @ whole[1].T))
        row.results = found, integers
        row.tflops, row.own_tflops = (
            _tflops(framework, f, a, b, size) for f in (framework.ours, framework.own)
        )
    except Exception as error:  # a broken framework must not keep the other from its row
        row.problem = f"{type(error).__name__}: {error}"
    return row


def _integers(random: Any, size: int) -> tuple[Any, Any]:
    """Ones and minus ones, few enough in a row that every sum is exact in bfloat16."""
    a = random.integers(-1, 2, (size, size)).astype("float32")
    a[:, 128:] = 0  # |sums| <= 128: integers of 8 bits
    return a, random.integers(-1, 2, (size, size)).astype("float32")


def _tflops(framework: _Framework, product: Callable[[Any, Any], Any], a: Any, b: Any, size: int) -> float:
    framework.wait(product(a, b))
    launches, seconds = 1, 0.0
    while seconds < _SECONDS:
        launches = launches if seconds == 0 else max(launches + 1, int(1.2 * launches * _SECONDS / seconds))
        start = time.perf_counter()
        for _ in range(launches):
            result = product(a, b)
        framework.wait(result)
        seconds = time.perf_counter() - start
    return 2.0 * size**3 * launches / seconds / 1e12


def _open_torch() -> _Framework:
    import torch

    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    device = "cuda" if on_gpu else "cpu"
    return _Framework(
        device=torch.cuda.get_device_name() if on_gpu else "CPU",
        is_hopper=on_gpu,
        own_name="PyTorch",
        to_array=lambda x: torch.from_numpy(x).to(device, torch.bfloat16),
        to_numpy=lambda x: x.float().cpu().numpy(),
        ours=lambda a, b: matmul(a, b.T),
        own=lambda a, b: torch.mm(a, b.T),
        wait=lambda _: torch.cuda.synchronize() if on_gpu else None,
    )


def _open_jax() -> _Framework:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave PyTorch its memory
    import jax
    import jax.numpy as jnp
    import numpy as np

    from . import jax as hopgemm_jax

    device = jax.devices()[0]
    capability = getattr(device, "compute_capability", "")
    return _Framework(
        device=device.device_kind if capability == "9.0" else device.platform.upper(),
        is_hopper=capability == "9.0",
        own_name="XLA",
        to_array=lambda x: jnp.asarray(x, jnp.bfloat16),
        to_numpy=lambda x: np.asarray(x, np.float32),
        # B as it lies: a transpose before a custom call would be a copy.
        ours=jax.jit(lambda a, b: hopgemm_jax.dot_general(a, b, (((1,), (1,)), ((), ())))),
        own=jax.jit(lambda a, b: a @ b.T),
        wait=lambda x: x.block_until_ready(),
    )
