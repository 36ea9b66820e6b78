"""What torch.utils.flop_counter.FlopCounterMode counts for our operators: 2 for each multiply and add, as for
torch's own; `alpha`, `c` and `bias` are not counted there either."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula


def _product(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
    rows, columns = (a[-2] if len(a) > 1 else 1), (b[-1] if len(b) > 1 else 1)
    batch = torch.broadcast_shapes(a[:-2], b[:-2])
    return 2 * math.prod(batch) * rows * columns * a[-1]


def _product_into(out: torch.Size, a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
    return _product(a, b)


def _both_gradients(grad: torch.Size, a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * _product(a, b)


def _linear(x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * math.prod(x) * weight[0]


def _linear_gradients(grad: torch.Size, x: torch.Size, weight: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * _linear(x, weight)


_FORMULAS = {
    _product: ("gemm", "_gemm", "_mm", "_mm_bias"),
    _product_into: ("gemm_out", "_mm_out"),
    _both_gradients: ("_mm_backward",),
    _linear: ("_linear",),
    _linear_gradients: ("_linear_backward",),
}


def register() -> None:
    """Once a process."""
    for formula, names in _FORMULAS.items():
        for name in names:
            operator = getattr(torch.ops.hopgemm, name)
            if operator not in flop_registry:
                register_flop_formula(operator)(formula)
