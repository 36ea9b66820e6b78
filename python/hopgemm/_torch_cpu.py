"""The product from torch's own operations: what CPU tensors get, and the fallback on other GPUs.

The numerics are the kernel's: fp32 sums, scaled and added in fp32, rounded once. The bits are the same where
every partial sum is exact in fp32; else the order of summation is torch's.
"""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

from typing import Any

import torch

from ._torch_checks import check_linear, check_out, check_range, check_tensors, lies_by_column
from ._torch_library import LIBRARY, Args


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: torch.dtype | None = None,
    wide: torch.dtype = torch.float32,
) -> torch.Tensor:
    """alpha * a @ b + beta * c + bias of checked tensors with 2 and more dimensions.

    The operands are multiplied in `wide`; the result is differentiable and contiguous.
    """
    with torch.autocast(a.device.type, enabled=False):  # it would undo the cast to fp32
        if alpha == 0:  # nothing of a and b is read: neither may their NaN be
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            d = a.new_zeros((*batch, a.shape[-2], b.shape[-1]), dtype=torch.float32)
        else:
            d = torch.matmul(a.to(wide), b.to(wide)).float()
            d = d if alpha == 1 else alpha * d
        if c is not None and beta != 0:
            d = d + (c.float() if beta == 1 else beta * c.float())
        if bias is not None:
            d = d + (bias.unsqueeze(-2) if bias.dim() > 1 else bias).float()
        return d.to(out_dtype or a.dtype).contiguous()


def _wide() -> torch.dtype:
    # HAZARD: where torch may multiply fp32 in fewer bits on the CPU, it does, and fp16 operands would lose
    # theirs. (torch.get_float32_matmul_precision raises once anything was set through torch.backends.)
    exact = torch.backends.mkldnn.matmul.fp32_precision in ("none", "ieee")  # type: ignore[attr-defined]
    return torch.float32 if exact else torch.float64


def _checked(*given: Any) -> Args:
    args = Args(*given)
    check_range("alpha", args.alpha)
    check_range("beta", args.beta)
    return args


def _gemm(*given: Any) -> torch.Tensor:
    args = _checked(*given)
    check_tensors(args.a, args.b, args.c, args.bias, args.out_dtype)
    if args.c is None and args.beta != 0:
        raise ValueError(
            f"hopgemm.matmul: beta is {args.beta} but c is None; beta needs c. Pass c, or beta=0"
        )
    return product(*args[:7], _wide())


def _gemm_out(out: torch.Tensor, *given: Any) -> None:
    args = _checked(*given[:6])  # then options, which mean nothing here
    added = out if args.c is None and args.beta != 0 else args.c
    shape = check_tensors(args.a, args.b, added, args.bias, out.dtype)
    check_out(out, shape, args.a, args.b, args.c, args.bias)
    out.copy_(product(*args._replace(c=added, out_dtype=out.dtype)[:7], _wide()))


def _mm_bias(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return _gemm(a, b, None, bias)


def _mm_backward(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    grad_a = _gemm(grad, b.mT)
    if b.dim() == 2:
        a, grad = a.flatten(0, -2), grad.flatten(0, -2)
    return grad_a, _gemm(grad.mT, a).mT if lies_by_column(b) else _gemm(a.mT, grad)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    check_linear(weight, bias)
    return _gemm(x, weight.mT, None, bias)


def _linear_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, wide_x: bool, wide_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    def gradient(a: torch.Tensor, b: torch.Tensor, wide: bool) -> torch.Tensor:
        return _gemm(a, b, None, None, 1.0, 0.0, torch.float32 if wide else None)

    rows = grad.flatten(0, -2)
    return gradient(grad, weight, wide_x), gradient(rows.mT, x.flatten(0, -2), wide_weight)


def register() -> None:
    """Registers the product as the CPU kernel of every operator."""
    for name, kernel in (
        ("gemm", _gemm),
        ("_gemm", _gemm),
        ("_mm", _gemm),
        ("_mm_bias", _mm_bias),
        ("gemm_out", _gemm_out),
        ("_mm_out", _gemm_out),
        ("_mm_backward", _mm_backward),
        ("_linear", _linear),
        ("_linear_backward", _linear_backward),
    ):
        LIBRARY.impl(name, kernel, "CPU")
