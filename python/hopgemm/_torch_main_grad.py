"""linear() whose weight gradient the kernel adds to an fp32 buffer, `weight.main_grad`."""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import torch as _frontend  # the module, for what it defines later: they import each other
from ._context import current
from ._torch_autograd import is_compiling, is_grad_enabled
from ._torch_checks import describe
from ._torch_sharding import is_dtensor
from ._torch_transforms import autocast


def wants_main_grad(weight: Any) -> bool:
    """Will a call now want the gradient of a weight that has a main_grad?"""
    return getattr(weight, "main_grad", None) is not None and is_grad_enabled() and weight.requires_grad


def _main_grad(weight: torch.Tensor) -> torch.Tensor:
    """weight.main_grad, checked."""
    t: Any = getattr(weight, "main_grad", None)
    if not isinstance(t, torch.Tensor):
        raise TypeError(
            f"hopgemm.torch.linear: weight.main_grad is a {type(t).__name__}; it must be a float32 tensor "
            "like weight, from the forward to the end of the backward. Set it to "
            "torch.zeros_like(weight, dtype=torch.float32), or delete it before the forward"
        )
    if is_dtensor(t) or is_dtensor(weight) or not weight.is_leaf:
        raise TypeError(
            f"hopgemm.torch.linear: weight.main_grad is a {type(t).__name__} and weight a "
            f"{type(weight).__name__}{'' if weight.is_leaf else ', the result of an operation'}; neither "
            "may be a DTensor, and weight must be a leaf, as parameters are. Delete weight.main_grad"
        )
    way = "Set it to torch.zeros_like(weight, dtype=torch.float32)"
    pair = f"weight.main_grad is {describe(t)} and weight is {describe(weight)}"
    if t.dtype != torch.float32 or t.device != weight.device or t.layout != torch.strided:
        raise TypeError(
            f"hopgemm.torch.linear: {pair}; it must be float32, dense and on weight's device. {way}"
        )
    if t.shape != weight.shape:
        raise ValueError(f"hopgemm.torch.linear: {pair}; both must have one shape. {way}")
    return t


def linear_into_main_grad(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kernel_takes: bool
) -> torch.Tensor:
    """linear() of a weight that `wants_main_grad`. Raises where the gradient would not get there."""
    _main_grad(weight)
    if not kernel_takes:  # F.linear would put the gradient into weight.grad, where nobody looks
        found = describe(x) if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
        raise TypeError(
            f"hopgemm.torch.linear: x is {found} and weight has a main_grad; such an x is left to torch, "
            "whose gradient does not go there. Use bfloat16 or float16 tensors, or torch.autocast, on a "
            "Hopper GPU or a CPU; or delete weight.main_grad"
        )
    if is_compiling():
        raise RuntimeError(
            "hopgemm.torch.linear: weight has a main_grad and this call is compiled; weight.main_grad is "
            "written by eager code only. Leave the layer out with torch.compiler.disable, or delete "
            "weight.main_grad"
        )
    return _Linear.apply(x, weight, bias)


def _rows(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(t.shape[:-1].numel(), t.shape[-1])  # not -1: a size may be 0


def _is_asked_for(ctx: Any) -> bool:
    """Does this backward want the weight's gradient? Not with autograd.grad(loss, x), backward(inputs=[x]).

    Raises RuntimeError for autograd.grad(loss, weight), which wants it as a tensor.
    """
    accumulate_grad = ctx.next_functions[1][0]  # of the second tensor, the weight
    try:
        return torch._C._will_engine_execute_node(accumulate_grad)
    except RuntimeError as error:
        raise RuntimeError(
            "hopgemm.torch.linear: torch.autograd.grad asks for the gradient of a weight that has a "
            "main_grad; it is written there and not returned. Call backward(), or delete weight.main_grad"
        ) from error


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        a, w, _, added = autocast(x.device.type, x, weight, None, bias)
        assert a is not None and w is not None
        rows = _rows(a)
        ctx.save_for_backward(rows, w)
        ctx.weight = weight  # main_grad is looked up in the backward: until then it may be another buffer
        ctx.x_shape, ctx.x_dtype = x.shape, x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        now = current()  # the backward runs on another thread
        ctx.settings = {
            "sm_limit": now.sm_limit,
            "batch_invariant": now.batch_invariant,
            "fallback": now.fallback,
        }
        return _frontend.matmul(rows, w.mT, bias=added).reshape(*x.shape[:-1], w.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, w = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        g = _rows(grad)
        grad_x = grad_bias = None
        if need_x:
            grad_x = _frontend.matmul(g, w, **ctx.settings).reshape(ctx.x_shape).to(ctx.x_dtype)
        if need_weight and _is_asked_for(ctx):
            main_grad = _main_grad(ctx.weight)
            _frontend.matmul(g.mT, rows, out=main_grad, c=main_grad, beta=1.0, **ctx.settings)
        if need_bias:
            grad_bias = g.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return grad_x, None, grad_bias
