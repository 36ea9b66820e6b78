"""The operators of `_torch_ops.so` and the torch.library handle that bears their Python contracts.

    gemm, gemm_out   public: torch.ops.hopgemm.*, right under every transform of torch
    _gemm, _mm, _mm_bias, _mm_out, _mm_backward   the same C++ below autograd, for plain eager code

Nothing of the contracts belongs here (see the other `_torch_*` files).
"""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

import ctypes
from pathlib import Path
from typing import NamedTuple

import torch

from . import _core

# Beside the module `_core`, not beside this file: in an editable install they lie in different folders.
SHARED_LIBRARY = str(Path(_core.__file__).with_name("_torch_ops.so"))


def _load() -> None:
    operators = ctypes.CDLL(SHARED_LIBRARY)
    register = operators.hopgemm_register_torch_ops
    register.restype = ctypes.c_char_p
    error = register()
    if error:
        raise ImportError(f"hopgemm.torch: {error.decode()}")


_load()
LIBRARY = torch.library.Library("hopgemm", "FRAGMENT")  # what is registered on it lives as long as it does

gemm = torch.ops.hopgemm.gemm.default
gemm_out = torch.ops.hopgemm.gemm_out.default
# `_op` is what OpOverload.__call__ calls: without that Python frame, 0.3 us less.
raw_gemm = torch.ops.hopgemm._gemm.default._op
raw_mm = torch.ops.hopgemm._mm.default._op
raw_mm_bias = torch.ops.hopgemm._mm_bias.default._op
raw_mm_out = torch.ops.hopgemm._mm_out.default._op
raw_mm_backward = torch.ops.hopgemm._mm_backward.default._op


class Args(NamedTuple):
    """The arguments of `gemm`, of which the dispatcher drops trailing ones that equal their defaults."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    alpha: float = 1.0
    beta: float = 0.0
    out_dtype: torch.dtype | None = None
    config: str = ""
    sm_limit: int = 0
    batch_invariant: bool = False
