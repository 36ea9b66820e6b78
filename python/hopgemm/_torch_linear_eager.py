"""linear() in plain eager code: one node of autograd, and no kernel that aten::linear does not launch.

Which calls come here is decided in `_torch_linear.py`.
"""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from . import torch as _frontend  # the module, for what it defines later: they import each other
from ._torch_autograd import PLAIN, is_autocast_on, is_grad_enabled, is_intercepted, product, rows_fold
from ._torch_checks import OPERAND_DTYPES
from ._torch_library import cached_cast, raw_linear, raw_linear_backward

saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def linear_in_eager_code(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """linear() of plain tensors, outside of modes and transforms and with default settings, where it can.

    None: for the long way, which knows why.
    """
    # Each test costs some 50 to 100 ns.
    if x.layout is not torch.strided or weight.layout is not torch.strided or x.is_nested:
        return None
    if x.is_cuda:
        if not _frontend._kernel_runs_on(x.device):
            return None
        device = "cuda"
    elif x.is_cpu:
        device = "cpu"
    else:
        return None
    a, w, dtype = x, weight, x.dtype
    if is_autocast_on() and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        if dtype not in OPERAND_DTYPES:
            return None
        if x.dtype != dtype:
            if x.dtype != torch.float32:
                return None
            a = x.to(dtype)
        if weight.dtype != dtype:
            if weight.dtype != torch.float32:
                return None
            w = cached_cast(weight, dtype)
    elif dtype not in OPERAND_DTYPES or weight.dtype != dtype:
        return None
    if bias is not None and bias.dtype != torch.float32 and bias.dtype != dtype:
        return None
    # HAZARD: what goes wrong below goes the long way, in silence: a test counts that calls end here.
    try:
        if is_grad_enabled() and (
            x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        ):
            by_column = saved_tensors_hooks(False) is not None
            return _apply(x, weight, bias, (a, w.mT if by_column else w, by_column))
        return raw_linear(a, w, bias)
    except (TypeError, ValueError, RuntimeError):
        return None


class _Linear(torch.autograd.Function):
    """a @ w.T + bias, where a and w are x and weight themselves or their casts.

    The gradients go to x and weight, so that the kernel writes them in float32 and no cast follows. But what
    is saved is a and w: x is not kept alive, and a derivative of the gradients finds its way through them.
    They come in a tuple, unseen by autograd: inputs without a gradient break compiled autograd.

    HAZARD: with hooks on saved tensors w comes and is saved as w.mT, as the long way saves it: activation
    checkpointing may record the one way and compute again by the other, in which settings no longer hold.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        operands: tuple[torch.Tensor, torch.Tensor, bool],
    ) -> torch.Tensor:
        a, w, by_column = operands
        need_x, need_weight, need_bias, _ = ctx.needs_input_grad
        ctx.save_for_backward(a if need_weight else None, w if need_x else None)
        bias_dtype = bias.dtype if need_bias else None  # type: ignore[union-attr]
        ctx.saved = x.dtype, weight.dtype, bias_dtype, by_column  # an attribute costs 0.3 us
        return raw_linear(a, w.mT if by_column else w, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, w = ctx.saved_tensors
        x_dtype, weight_dtype, bias_dtype, by_column = ctx.saved
        if by_column and w is not None:
            w = w.mT
        grad_x = grad_weight = grad_bias = None
        if (
            a is not None
            and w is not None
            and not is_grad_enabled()
            and type(grad) in PLAIN
            and not is_intercepted()
            and (a.dim() == 2 or (rows_fold(a) and rows_fold(grad)))
        ):
            wide_x, wide_weight = x_dtype == torch.float32, weight_dtype == torch.float32
            grad_x, grad_weight = raw_linear_backward(grad, a, w, wide_x, wide_weight)
        else:
            # The backward may run in a region of another dtype than the forward's.
            with torch.autocast(grad.device.type, enabled=False) if is_autocast_on() else nullcontext():
                if w is not None:
                    grad_x = product(grad, w, out_dtype=x_dtype)
                if a is not None:
                    rows = grad.flatten(0, -2)
                    grad_weight = product(rows.mT, a.flatten(0, -2), out_dtype=weight_dtype)
        if bias_dtype is not None:
            grad_bias = grad.sum(tuple(range(grad.dim() - 1)), dtype=bias_dtype)
        return grad_x, grad_weight, grad_bias, None


# As in `_torch_autograd.py`: without the frames of Python around both.
_apply = super(torch.autograd.Function, _Linear).apply
_Linear._backward_cls.apply = _Linear.backward  # type: ignore[attr-defined]
