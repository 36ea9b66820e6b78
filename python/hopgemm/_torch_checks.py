"""What a product asks of its tensors, and the words in which it refuses them.

Used where Python decides (fake tensors, the CPU) and to explain an error of the C++ operators, which check
the same rules but cannot raise TypeError. Nothing here computes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ._context import shown

OPERAND_DTYPES = (torch.bfloat16, torch.float16)
_FLOAT32_TINY, _FLOAT32_MAX = 2.0**-149, torch.finfo(torch.float32).max


def describe(t: torch.Tensor) -> str:
    """Dtype, shape and device of a tensor, as messages show them: `float64 (64, 32) on cpu`."""
    return f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)} on {t.device}"


def _pair(name_x: str, x: torch.Tensor, name_y: str, y: torch.Tensor) -> str:
    return f"{name_x} is {describe(x)} and {name_y} is {describe(y)}"


def check_types(a: Any, b: Any, c: Any, bias: Any, alpha: Any, beta: Any) -> None:
    """TypeError unless these are tensors and Python numbers; ValueError for a beta without c."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        raise TypeError(
            f"hopgemm.matmul: a is a {type(a).__name__} and b is a {type(b).__name__}; "
            "both must be torch.Tensor. Convert them with torch.as_tensor, then cast to bfloat16 or float16"
        )
    for name, t in (("c", c), ("bias", bias)):
        if t is not None and not isinstance(t, torch.Tensor):
            raise TypeError(
                f"hopgemm.matmul: {name} is {shown(t)}; it must be a torch.Tensor or None. "
                f"Convert it with torch.as_tensor({name}, dtype=a.dtype, device=a.device)"
            )
    for name, number in (("alpha", alpha), ("beta", beta)):
        if not isinstance(number, (int, float)):
            raise TypeError(
                f"hopgemm.matmul: {name} is {shown(number)}; it must be a Python number. "
                "Convert it with float(), or "
                + ("pass beta=1 and multiply c" if name == "beta" else "leave it out and multiply the result")
            )
        check_range(name, number)
    if c is None and beta != 0:
        raise ValueError(f"hopgemm.matmul: beta is {beta} but c is None; beta needs c. Pass c, or beta=0")
    if bias is not None and bias.dim() != 1:
        check_dense("bias", bias)
        raise ValueError(
            f"hopgemm.matmul: bias is {describe(bias)}; it must have one dimension, of N values. "
            "Flatten it with .reshape(-1), or pass it as c with beta=1"
        )


def check_range(name: str, number: float) -> None:
    """ValueError for a finite number that would be infinite, or 0, as the float32 that the kernel takes."""
    size = abs(number)
    if 0 < size < _FLOAT32_TINY or _FLOAT32_MAX < size != math.inf:
        raise ValueError(
            f"hopgemm.matmul: {name} is {number}; it must be 0 or between 1.5e-45 and 3.4e38 in size, as "
            f"float32 holds. {'Scale c' if name == 'beta' else 'Scale an operand, or the result'}"
        )


def check_vectors(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, bias: torch.Tensor | None
) -> None:
    """ValueError for what does not go with 1-D operands, in the shapes that the caller knows."""
    if a.dim() and b.dim() and a.shape[-1] != b.shape[max(b.dim() - 2, 0)]:
        raise ValueError(
            f"hopgemm.matmul: {_pair('a', a, 'b', b)}; "
            "the dimensions of the sum must be equal. Is a transpose (.mT) missing?"
        )
    if b.dim() == 1 and bias is not None:
        raise ValueError(
            f"hopgemm.matmul: {_pair('bias', bias, 'b', b)}; the result has no columns for a bias. "
            "Pass it as c with beta=1"
        )
    result_dims = max(a.dim(), b.dim(), 2) - (a.dim() == 1) - (b.dim() == 1)
    if c is not None and c.dim() > result_dims:
        raise ValueError(
            f"hopgemm.matmul: c is {describe(c)}; it must broadcast to the result, which has {result_dims} "
            "dimensions. Reshape it with .reshape()"
        )


def check_tensors(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[int, ...]:
    """Checks one product of matrices (2 and more dimensions); returns the shape of its result.

    Raises TypeError for dtypes, devices and layouts, ValueError for shapes.
    """
    tensors: dict[str, torch.Tensor | None] = {"a": a, "b": b, "c": c, "bias": bias}
    for name, t in tensors.items():
        check_dense(name, t)
    for name, operand in (("a", a), ("b", b)):
        if operand.dtype not in OPERAND_DTYPES:
            raise TypeError(
                f"hopgemm.matmul: {name} is {describe(operand)}; supported: bfloat16, float16. "
                "Cast it with .to(torch.bfloat16), or use torch.matmul"
            )
    if a.dtype != b.dtype:
        raise TypeError(f"hopgemm.matmul: {_pair('a', a, 'b', b)}; both need one dtype. Cast one with .to()")
    if out_dtype not in (None, a.dtype, torch.float32):
        raise TypeError(
            f"hopgemm.matmul: out_dtype is {out_dtype}; "
            f"supported beside {a.dtype} operands: {a.dtype}, torch.float32. Cast the result with .to()"
        )
    for name, t in tensors.items():
        if t is None:
            continue
        if t.device != a.device:
            pair = _pair("a", a, name, t)
            raise TypeError(f"hopgemm.matmul: {pair}; all must be on one device. Move one with .to()")
        if name in ("c", "bias") and t.dtype not in (a.dtype, torch.float32):
            raise TypeError(
                f"hopgemm.matmul: {name} is {describe(t)}; "
                f"it needs a's dtype, {a.dtype}, or torch.float32. Cast it with .to()"
            )
    return _result_shape(a, b, c, bias)


def check_dense(name: str, t: torch.Tensor | None) -> None:
    """TypeError for a tensor whose elements do not lie at its strides."""
    if t is None:
        return
    if t.layout != torch.strided:
        raise TypeError(
            f"hopgemm.matmul: {name} has layout {t.layout}; it must be dense. Convert it with .to_dense()"
        )
    if t.is_nested:
        raise TypeError(
            f"hopgemm.matmul: {name} is a nested tensor; it must be dense. Convert it with "
            "torch.nested.to_padded_tensor()"
        )


def check_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """ValueError unless weight is one matrix and bias one vector."""
    if weight.dim() != 2 or (bias is not None and bias.dim() != 1):
        found = describe(weight) if bias is None else f"{describe(weight)} and bias is {describe(bias)}"
        raise ValueError(
            f"hopgemm._linear: weight is {found}; they need two dimensions and one. Reshape them"
        )


def lies_by_column(b: torch.Tensor) -> bool:
    """Is this matrix the transpose of a contiguous one? Then its gradient lies so too, as torch.mm's."""
    return b.dim() == 2 and b.stride(0) == 1 and b.stride(1) == b.shape[0]


def _result_shape(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, bias: torch.Tensor | None
) -> tuple[int, ...]:
    if a.dim() < 2 or b.dim() < 2:
        raise ValueError(
            f"hopgemm.matmul: {_pair('a', a, 'b', b)}; a 0-d tensor is no matrix. Multiply with * instead"
        )
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"hopgemm.matmul: {_pair('a', a, 'b', b)}; "
            "the last dimension of a must equal the last but one of b. Is a transpose (.mT) missing?"
        )
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    if batch is None or len(batch) > 6:
        raise ValueError(
            f"hopgemm.matmul: {_pair('a', a, 'b', b)}; the batch dimensions must broadcast, to at most 6. "
            "Insert one of size 1, as a[:, None] does, or flatten some"
        )
    shape = (*batch, a.shape[-2], b.shape[-1])
    if c is not None and _broadcast(shape, c.shape) != shape:
        raise ValueError(
            f"hopgemm.matmul: c is {describe(c)}; it must broadcast to the result, {tuple(shape)}. "
            "Reshape it, or transpose it with .mT"
        )
    if bias is not None:
        rows = (*batch, b.shape[-1])
        if bias.dim() < 1 or bias.shape[-1] != b.shape[-1] or _broadcast(rows, bias.shape) != rows:
            raise ValueError(
                f"hopgemm.matmul: bias is {describe(bias)}; "
                f"it needs one value for each of the {b.shape[-1]} columns. "
                "For one value a row pass c=bias[:, None] with beta=1"
            )
    return shape


def _broadcast(x: Any, y: Any) -> tuple[int, ...] | None:
    """The shape that x and y broadcast to; None where they do not.

    (torch.broadcast_shapes raises in other words.)
    """
    length = max(len(x), len(y))
    pairs = zip((1,) * (length - len(x)) + tuple(x), (1,) * (length - len(y)) + tuple(y), strict=True)
    shape = []
    for p, q in pairs:
        if p != q and p != 1 and q != 1:
            return None
        shape.append(q if p == 1 else p)
    return tuple(shape)


def check_out_shape(out: torch.Tensor, shape: tuple[int, ...], a: torch.Tensor) -> None:
    """ValueError for an `out` not of the result's shape, TypeError for one on another device than a."""
    if tuple(out.shape) != shape:
        raise ValueError(
            f"hopgemm.matmul: out is {describe(out)}; it must have the result's shape, {tuple(shape)}. "
            "Make it with a.new_empty(shape), or leave it out"
        )
    if out.device != a.device:
        pair = _pair("a", a, "out", out)
        raise TypeError(f"hopgemm.matmul: {pair}; all must be on one device. Move one with .to()")


def check_out(
    out: torch.Tensor,
    shape: tuple[int, ...],
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:
    """Refuses an `out` of another shape or device, or in memory that is read; `c` may be `out` itself."""
    check_values("out", out)
    check_out_shape(out, shape, a)
    if type(out) is not torch.Tensor:
        _refuse_dtensor(out)
    if torch.compiler.is_compiling():  # no addresses yet
        return
    if torch._debug_has_internal_overlap(out) == 1:
        raise ValueError(
            f"hopgemm.matmul: out has strides {out.stride()}; it must not have several elements in one "
            "place. Clone it first"
        )
    for name, t in (("a", a), ("b", b), ("c", c), ("bias", bias)):
        if t is None or (name == "c" and is_same_view(out, t)) or not _may_overlap(out, t):
            continue
        rule = "c must be out itself or lie elsewhere" if name == "c" else "what is read must lie elsewhere"
        raise ValueError(f"hopgemm.matmul: out overlaps {name} in memory; {rule}. Clone one of them")


def _refuse_dtensor(out: torch.Tensor) -> None:
    from ._torch_sharding import is_dtensor

    if is_dtensor(out):
        raise ValueError(
            "hopgemm.matmul: out is a DTensor; it must be a plain tensor. Use the tensor that is returned "
            "instead"
        )


def check_values(name: str, t: torch.Tensor) -> None:
    """TypeError for a tensor that does not hold what it is written, element by element."""
    check_dense(name, t)
    if not torch.compiler.is_compiling() and t.is_neg():
        raise TypeError(
            f"hopgemm.matmul: {name} is a negated view; it must hold its own values. Write to a tensor of "
            "its own, and negate that"
        )


def is_same_view(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Are these the same elements, in the same order?"""
    return x is y or (
        x.data_ptr() == y.data_ptr()
        and x.shape == y.shape
        and x.stride() == y.stride()
        and x.dtype == y.dtype
        and x.is_neg() == y.is_neg()
    )


def _may_overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    if not x.numel() or not y.numel():
        return False
    start_x, start_y = x.data_ptr(), y.data_ptr()
    if start_x + _extent(x) <= start_y or start_y + _extent(y) <= start_x:
        return False
    # Column slices of one buffer: the same row pitch, and windows that do not touch.
    if x.dim() == y.dim() == 2 and x.stride(1) == y.stride(1) == 1 and x.element_size() == y.element_size():
        pitch = x.stride(0) * x.element_size()
        shift = (start_y - start_x) % pitch if x.stride(0) == y.stride(0) and pitch else 0
        if shift >= x.shape[1] * x.element_size() and shift + y.shape[1] * y.element_size() <= pitch:
            return False
    return True


def _extent(t: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()
