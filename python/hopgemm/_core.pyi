"""The nanobind module (src/bindings/module.cpp)."""

from collections.abc import Sequence
from typing import Any

XLA_FFI_API: tuple[int, int]
compiler: str
commit: str
max_sums_bytes: int

def device_count() -> int: ...
def driver_version() -> int: ...
def runtime_version() -> int: ...
def device_info(device: int) -> dict[str, Any]: ...
def configs() -> list[str]: ...
def warmup(device: int) -> None: ...
def plan(
    dtype: str,
    out_dtype: str,
    m: int,
    n: int,
    k: int,
    batch: Sequence[int],
    a_strides: Sequence[int],
    b_strides: Sequence[int],
    d_strides: Sequence[int],
    *,
    alignment: tuple[int, int, int] = (256, 256, 256),
    beta: float = 0.0,
    c: bool = False,
    bias: bool = False,
    alpha: float = 1.0,
    config: str = "",
    device: int | None = None,
    facts: dict[str, Any] = ...,
    sm_limit: int = 0,
    batch_invariant: bool = False,
    tuned: bool = True,
) -> dict[str, Any]: ...
def tuning_key(
    dtype: str,
    out_dtype: str,
    m: int,
    n: int,
    k: int,
    batch: Sequence[int],
    a_strides: Sequence[int],
    b_strides: Sequence[int],
    d_strides: Sequence[int],
    *,
    alignment: tuple[int, int, int] = (256, 256, 256),
    beta: float = 0.0,
    c: bool = False,
    bias: bool = False,
    alpha: float = 1.0,
    device: int | None = None,
    facts: dict[str, Any] = ...,
    sm_limit: int = 0,
    batch_invariant: bool = False,
) -> tuple[str, str, str, int, int, int, int, int, int, bool] | None: ...
def set_tuned(entries: list[tuple[str, tuple[Any, ...], str]]) -> None: ...
def gemm(
    a: Any,
    b: Any,
    out: Any,
    *,
    c: Any = None,
    bias: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    config: str = "",
    sm_limit: int = 0,
    batch_invariant: bool = False,
    workspace: Any = None,
    stream: int = 0,
) -> None: ...
def roof(device: int, seconds: float = 1.0) -> float: ...
def xla_handlers() -> dict[str, Any]: ...
