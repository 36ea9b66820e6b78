"""What the operators need to be right under FakeTensor and torch.compile, vmap and autocast.

Autograd is in `_torch_autograd.py`.
"""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

from typing import Any

import torch

from ._torch_checks import check_linear, check_out_shape, check_tensors, lies_by_column
from ._torch_library import LIBRARY, Args, gemm

# ---- fake: shapes, dtypes and refusals, without data ----


def _fake(*given: Any) -> torch.Tensor:
    args = Args(*given)
    shape = check_tensors(args.a, args.b, args.c, args.bias, args.out_dtype)
    return args.a.new_empty(shape, dtype=args.out_dtype or args.a.dtype)


def _fake_bias(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return _fake(a, b, None, bias)


def _fake_out(out: torch.Tensor, *given: Any) -> None:
    args = Args(*given[:6])
    check_out_shape(out, check_tensors(args.a, args.b, args.c, args.bias, out.dtype), args.a)


def _fake_backward(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    columns = b.new_empty(b.mT.shape).mT if lies_by_column(b) else b.new_empty(b.shape)
    return a.new_empty(a.shape), columns


def _fake_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    check_linear(weight, bias)
    return _fake(x, weight.mT, None, bias)


def _fake_linear_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, wide_x: bool, wide_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        x.new_empty(x.shape, dtype=torch.float32 if wide_x else x.dtype),
        x.new_empty(weight.shape, dtype=torch.float32 if wide_weight else x.dtype),
    )


# ---- vmap: one more batch dimension, on the left ----


def _vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[torch.Tensor, int]:
    args = Args(*given)
    a, b, c, bias = args[:4]
    dims = (*in_dims[:4], None, None)[:4]
    rank = max(t.dim() - (d is not None) for t, d in zip((a, b), dims[:2], strict=True))

    def front(t: Any, dim: int | None, rank: int) -> Any:
        # The mapped dimension goes left of `rank` logical ones, so that it broadcasts as a batch dimension of
        # its own.
        if t is None or dim is None:
            return t
        t = t.movedim(dim, 0)
        return t.reshape(t.shape[0], *(1,) * (rank - (t.dim() - 1)), *t.shape[1:])

    a, b, c = (front(t, d, rank) for t, d in zip((a, b, c), dims[:3], strict=True))
    bias = front(bias, dims[3], rank - 1)
    if dims[0] is None and dims[1] is None:  # only c or bias is mapped
        a = a.expand(info.batch_size, *(1,) * (rank - a.dim()), *a.shape)
    if c is not None and c.dim() > 2 and max(a.dim(), b.dim()) > 4:  # as in torch.matmul: c may not fold
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        c = c.expand(*batch, *c.shape[-2:]).contiguous()
    # The public operator, not a raw one: an outer level may still want gradients of this batch.
    return gemm(a, b, c, bias, *args[4:]), 0


# ---- autocast: the rule of torch.matmul ----


def autocast(device: str, *tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Casts (a, b, c, bias) as an autocast region on `device` wants; c and bias may stay fp32."""
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)

    def cast(i: int, t: torch.Tensor | None) -> torch.Tensor | None:
        if t is None or not t.is_floating_point() or t.device.type != device or t.dtype == torch.float64:
            return t
        return t if i >= 2 and t.dtype == torch.float32 else t.to(dtype)

    return tuple(cast(i, t) for i, t in enumerate(tensors))


def _register_autocast(name: str, tensors: int, device: str, key: str) -> None:
    # torch.library.register_autocast freezes one dtype at registration; matmul takes that of the region.
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    op = getattr(torch.ops.hopgemm, name).default

    def kernel(*args: Any) -> Any:
        cast = autocast(
            device, *args[:tensors]
        )  # before the guard: a key that is excluded counts as switched off
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return op(*cast, *args[tensors:])

    LIBRARY.impl(name, kernel, key)


def register() -> None:
    """Registers everything of this file."""
    for name in ("gemm", "_gemm", "_mm"):
        torch.library.register_fake(f"hopgemm::{name}", _fake, lib=LIBRARY)
    torch.library.register_fake("hopgemm::_mm_bias", _fake_bias, lib=LIBRARY)
    for name in ("gemm_out", "_mm_out"):
        torch.library.register_fake(f"hopgemm::{name}", _fake_out, lib=LIBRARY)
    torch.library.register_fake("hopgemm::_mm_backward", _fake_backward, lib=LIBRARY)
    torch.library.register_fake("hopgemm::_linear", _fake_linear, lib=LIBRARY)
    torch.library.register_fake("hopgemm::_linear_backward", _fake_linear_backward, lib=LIBRARY)
    torch.library.register_vmap("hopgemm::gemm", _vmap, lib=LIBRARY)
    for device, key in (("cpu", "AutocastCPU"), ("cuda", "AutocastCUDA")):
        for name, tensors in (("gemm", 4), ("_gemm", 4), ("_mm", 2), ("_mm_bias", 3)):
            _register_autocast(name, tensors, device, key)
