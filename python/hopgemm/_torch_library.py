"""The operators torch.ops.hopgemm.*: their schemas, and the handle that bears their contracts.

    gemm, gemm_out   public: right under every transform of torch
    the rest         the same C++ (`_torch_ops.so`) below autograd, for plain eager code and compiled graphs

Nothing of the contracts belongs here (see the other `_torch_*` files).
"""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import _core

# Beside the module `_core`, not beside this file: in an editable install they lie in different folders.
SHARED_LIBRARY = str(Path(_core.__file__).with_name("_torch_ops.so"))


_GEMM = (
    "(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, float alpha=1.0, float beta=0.0, "
    'ScalarType? out_dtype=None, str config="", int sm_limit=0, bool batch_invariant=False) -> Tensor'
)
_SCHEMAS = {
    # The arguments of most calls: every further one costs 0.1 to 0.4 us of conversion, even at its default.
    "_mm": "(Tensor a, Tensor b) -> Tensor",
    "_mm_bias": "(Tensor a, Tensor b, Tensor bias) -> Tensor",
    "_linear": "(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    "_linear_backward": "(Tensor grad, Tensor x, Tensor weight, bool wide_x, bool wide_weight) "
    "-> (Tensor, Tensor)",
}
# Where strides matter: a `config` is a kernel for the layouts that the caller saw. A custom operator must not
# return an alias of an argument, and one tensor must not come in as `out` and as `c`: so those with `out`
# return nothing, and beta without c reads `out`.
_SCHEMAS_OF_STRIDES = {
    "gemm": _GEMM,
    "_gemm": _GEMM,
    "_mm_backward": "(Tensor grad, Tensor a, Tensor b) -> (Tensor, Tensor)",  # the second lies as b does
    "gemm_out": "(Tensor(a!) out, Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, float alpha=1.0, "
    'float beta=0.0, str config="", int sm_limit=0, bool batch_invariant=False) -> ()',
    "_mm_out": "(Tensor(a!) out, Tensor a, Tensor b) -> ()",
}
_CACHED_CAST = "_cached_cast(Tensor(a) t, ScalarType dtype) -> Tensor(a)"

LIBRARY = torch.library.Library("hopgemm", "FRAGMENT")  # what is registered on it lives as long as it does


def _load() -> None:
    operators = ctypes.CDLL(SHARED_LIBRARY)
    register = operators.hopgemm_register_torch_ops
    register.restype = ctypes.c_char_p
    error = register()
    if error:
        raise ImportError(f"hopgemm.torch: {error.decode()}")


for _name, _schema in _SCHEMAS.items():
    # Any strides give the same result. Without the tag Inductor copies operands to keep those that it saw.
    LIBRARY.define(_name + _schema, tags=(torch.Tag.flexible_layout,))
for _name, _schema in _SCHEMAS_OF_STRIDES.items():
    LIBRARY.define(_name + _schema)
LIBRARY.define(_CACHED_CAST)
_load()

gemm = torch.ops.hopgemm.gemm.default
gemm_out = torch.ops.hopgemm.gemm_out.default
# `_op` is what OpOverload.__call__ calls: without that Python frame, 0.3 us less.
raw_gemm = torch.ops.hopgemm._gemm.default._op
raw_mm = torch.ops.hopgemm._mm.default._op
raw_mm_bias = torch.ops.hopgemm._mm_bias.default._op
raw_mm_out = torch.ops.hopgemm._mm_out.default._op
raw_mm_backward = torch.ops.hopgemm._mm_backward.default._op
raw_linear = torch.ops.hopgemm._linear.default._op
raw_linear_backward = torch.ops.hopgemm._linear_backward.default._op


def _has_cached_cast() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        "hopgemm::_cached_cast", "CompositeImplicitAutograd"
    )


# (tensor, dtype) -> what autocast makes of it: for a parameter once a region, where torch's cache is found.
cached_cast: Any = torch.ops.hopgemm._cached_cast.default._op if _has_cached_cast() else torch.Tensor.to


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
