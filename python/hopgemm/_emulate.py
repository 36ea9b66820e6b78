"""`hopgemm.emulate`: the CUDA kernel's own role loops, run on the CPU by an emulated Hopper machine.

Slow, and not meant for results: it shows what the kernel does, and whether it does it by the rules.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, NamedTuple

_MAX_BATCH_DIMS = 6
_MAX_CONFIG_NAME = 128
_DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2}
_INVALID_ARGUMENT = 1
_EMULATION_FAILED = -1
_BatchSizes = ctypes.c_int64 * _MAX_BATCH_DIMS
_OnEvent = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64
)


class EmulationError(RuntimeError):
    """The kernel broke a rule of the hardware: a race, a deadlock, a misused barrier. The text says where."""


class Event(NamedTuple):
    """One call of a role to the hardware. `where`: a stage, a staging slot, or a barrier's byte offset."""

    step: int
    cta: int
    role: str
    what: str
    where: int
    value: int


class Emulation(NamedTuple):
    """What `emulate` returns. `config`: name of the kernel that ran; `steps`: decisions of the scheduler."""

    product: Any
    events: list[Event]
    config: str
    steps: int


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("col_stride", ctypes.c_int64),
        ("batch_stride", _BatchSizes),
    )


class _Emulation(ctypes.Structure):  # src/bindings/emulate.h
    _fields_ = (
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("batch_dims", ctypes.c_int64),
        ("batch", _BatchSizes),
        ("a", _Matrix),
        ("b", _Matrix),
        ("c", _Matrix),
        ("d", _Matrix),
        ("bias", _Matrix),
        ("alpha", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("config", ctypes.c_char_p),
        ("sm_count", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("on_event", _OnEvent),
        ("code", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("config_used", ctypes.c_char * _MAX_CONFIG_NAME),
        ("message", ctypes.c_char * (4096 - _MAX_CONFIG_NAME)),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    from . import _core

    library = ctypes.CDLL(str(Path(_core.__file__).with_name("libhopgemm_emulator.so")))
    library.hopgemm_emulate.argtypes = (ctypes.POINTER(_Emulation),)
    library.hopgemm_emulate.restype = None
    library.hopgemm_emulated_config.argtypes = (ctypes.c_int64,)
    library.hopgemm_emulated_config.restype = ctypes.c_char_p
    return library


def configs() -> list[str]:
    """Names of the kernels that can be emulated: those that are compiled for the GPU."""
    names: list[str] = []
    while name := _library().hopgemm_emulated_config(len(names)):
        names.append(name.decode())
    return names


def emulate(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: Any = None,
    config: str = "",
    seed: int = 0,
    sm_count: int = 4,
    log: bool = True,
) -> Emulation:
    """alpha * a @ b + beta * c + bias by the emulated kernel.

    Args:
      a: (..., M, K) NumPy array of float16, or of bfloat16 from ml_dtypes; any strides.
      b: (..., K, N), of a's dtype. Batch dimensions broadcast.
      bias: (N,) or None; of a's dtype or float32.
      c: broadcasts to the result, or None; of a's dtype or float32. Not read where beta is 0.
      out_dtype: a's dtype (the default) or float32.
      config: name of a kernel (`hopgemm._emulate.configs()`); "" lets the selector choose.
      seed: decides the order in which everything happens. The same seed gives the same run.
      sm_count: SMs of the emulated GPU.
      log: record events.

    Returns:
      An `Emulation`: product (..., M, N), events, config, steps.

    Raises:
      TypeError: not NumPy arrays, or dtypes that are not supported.
      ValueError: shapes or a config that do not fit.
      EmulationError: the kernel broke a rule. No result is returned then.
    """
    import numpy as np

    for name, x in (("a", a), ("b", b), ("c", c), ("bias", bias)):
        if x is not None and not isinstance(x, np.ndarray):
            raise TypeError(f"hopgemm.emulate: {name} is a {type(x).__name__}; pass a NumPy array")
    if a.dtype != b.dtype:
        raise TypeError(
            f"hopgemm.emulate: a is {a.dtype}, b is {b.dtype}; both need one dtype. Cast one of them"
        )
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"hopgemm.emulate: a is {a.shape}, b is {b.shape}; (..., M, K), (..., K, N) are needed"
        )
    if sm_count < 1:
        raise ValueError(f"hopgemm.emulate: sm_count is {sm_count}; it must be 1 or more")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if len(batch) > _MAX_BATCH_DIMS:
        raise ValueError(f"hopgemm.emulate: {len(batch)} batch dimensions; {_MAX_BATCH_DIMS} at most")
    (m, k), n = a.shape[-2:], b.shape[-1]
    product = np.empty((*batch, m, n), out_dtype or a.dtype)
    product.view(np.uint8)[...] = 0xFF  # NaN: what is not written shows
    events: list[Event] = []
    call = _Emulation(
        m=m, n=n, k=k, batch_dims=len(batch), alpha=alpha, beta=beta, sm_count=sm_count, seed=seed
    )
    call.batch[: len(batch)] = batch
    call.a = _matrix("a", np.broadcast_to(a, (*batch, m, k)))
    call.b = _matrix("b", np.broadcast_to(b, (*batch, k, n)))
    call.d = _matrix("the result", product)
    if beta != 0 and c is None:
        raise ValueError(f"hopgemm.emulate: beta is {beta} but c is None; pass c, or beta=0")
    if c is not None:
        call.c = _matrix("c", np.broadcast_to(c, product.shape))
    if bias is not None:
        if bias.shape != (n,):
            raise ValueError(
                f"hopgemm.emulate: bias is {bias.shape}; it must be ({n},). Pass it as c with beta=1"
            )
        call.bias = _matrix("bias", np.broadcast_to(bias, product.shape))
    call.config = config.encode()
    if log:

        def record(step: int, cta: int, role: bytes, what: bytes, where: int, value: int) -> None:
            events.append(Event(step, cta, role.decode(), what.decode(), where, value))

        call.on_event = _OnEvent(record)
    _library().hopgemm_emulate(ctypes.byref(call))
    message = call.message.decode()
    if call.code == _EMULATION_FAILED:
        again = f"config={call.config_used.decode()!r}, seed={seed}, sm_count={sm_count}"
        raise EmulationError(f"{message}\n  again: {again}")
    if call.code == _INVALID_ARGUMENT:
        raise ValueError(message)
    if call.code != 0:
        raise RuntimeError(message)
    return Emulation(product, events, call.config_used.decode(), call.steps)


def _matrix(name: str, x: Any) -> _Matrix:
    if x.dtype.name not in _DTYPES:
        raise TypeError(
            f"hopgemm.emulate: {name} is {x.dtype}; supported: {', '.join(_DTYPES)} (of ml_dtypes)"
        )
    if any(stride % x.itemsize for stride in x.strides):
        raise ValueError(
            f"hopgemm.emulate: {name} has strides of parts of elements: {x.strides} bytes. Copy it"
        )
    strides = [stride // x.itemsize for stride in x.strides]
    matrix = _Matrix(x.ctypes.data, _DTYPES[x.dtype.name], strides[-2], strides[-1])
    matrix.batch_stride[: len(strides) - 2] = strides[:-2]
    return matrix
