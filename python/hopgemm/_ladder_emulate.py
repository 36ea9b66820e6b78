"""The ladder's rungs on the emulated machine: no GPU, exact products, many schedules."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from ._emulate import EmulationError, _library

_MESSAGE_BYTES = 4096
_DTYPES = {"fp16": 0, "bf16": 1}  # DType of src/api/gemm.h


@functools.cache
def rungs() -> list[str]:
    """Names of the rungs that can be emulated: those that are written as roles."""
    name = _library().hopgemm_emulated_rung
    name.argtypes, name.restype = (ctypes.c_int64,), ctypes.c_char_p
    names: list[str] = []
    while found := name(len(names)):
        names.append(found.decode())
    return names


def check(rung: str, steps: Sequence[int], dtype: str, seed: int) -> str:
    """One exact product by one rung, the schedule decided by the seed. Empty: right; else what was found."""
    import numpy as np

    random = np.random.default_rng(seed)
    step_m, step_n, step_k = steps
    n = step_n if seed % 2 else 384 // step_n * step_n
    m, k = (step_m, 7 * step_k) if seed % 2 else (3 * step_m, 2 * step_k)
    a, b = (_operand(random, dtype, (rows, k)) for rows in (m, n))
    out = np.full((m, n), np.nan, a.dtype)
    try:
        _run(rung, dtype, a, b, out, seed)
    except EmulationError as error:
        return f"seed {seed}, {m} x {n} x {k}, {dtype}: {error}"
    exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(a.dtype)
    same = out.view(np.uint16) == exact.view(np.uint16)
    if same.all():
        return ""
    return f"seed {seed}, {m} x {n} x {k}, {dtype}: wrong number at {np.argwhere(~same)[0].tolist()}"


def _run(rung: str, dtype: str, a: Any, b: Any, out: Any, seed: int) -> None:
    (m, k), n = a.shape, b.shape[0]
    function = _library().hopgemm_emulate_rung
    pointers, integer = (ctypes.c_void_p,) * 3, ctypes.c_int64
    function.argtypes = (
        *(integer,) * 5,
        *pointers,
        integer,
        ctypes.c_uint64,
        ctypes.c_char_p,
        integer,
    )
    function.restype = integer
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    sm_count = 2 + seed % 3
    data = (x.ctypes.data for x in (a, b, out))
    if function(rungs().index(rung), _DTYPES[dtype], m, n, k, *data, sm_count, seed, message, _MESSAGE_BYTES):
        raise EmulationError(message.value.decode())


def _operand(random: Any, dtype: str, shape: tuple[int, int]) -> Any:
    import ml_dtypes
    import numpy as np

    return random.integers(-2, 3, shape).astype(ml_dtypes.bfloat16 if dtype == "bf16" else np.float16)
