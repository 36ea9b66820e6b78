"""`hopgemm.plan`: what a product would run, and why, on any machine.

Only the description of the operands is made here; C++ decides, by the code that runs products.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, SupportsFloat, SupportsIndex

from . import _cache, _context, _core
from ._context import shown
from ._device import device_index

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "half": "float16", "float": "float32"}
_PATHS = {
    "empty": "nothing to launch: the result has no elements",
    "fill": "no product: the result is beta * c + bias",
    "gemm": "the kernel",
}
_STORES = {"tma": "TMA, through shared memory", "direct": "vector stores, through shared memory"}


@dataclass(frozen=True)
class Plan:
    """What one product runs. `str(plan)` tells it in words.

    path: "empty" (nothing launched), "fill" (K or alpha is 0) or "gemm" (the kernel).
    config: the compiled kernel and its schedule; `matmul(..., config=...)` takes it.
    reason: who chose it, and why.
    majors: how the kernel reads A and B, after packing: "kk", "kn", "mk" or "mn".
    pack_a, pack_b: the operand is first copied into a workspace, since TMA cannot read it in place.
    swapped: computed as the transposed product.
    store: how the result leaves: "tma" or "direct".
    tiles, grid, waves: output tiles of one CTA, CTAs launched, tiles / CTAs.
    launches: of the kernel, one after the other, that share the tiles.
    workspace_bytes: device memory wanted besides the operands.
    flops, bytes: 2 M N K of all batches; each operand once and the result once.
    """

    path: Literal["empty", "fill", "gemm"]
    config: str
    reason: str
    majors: str
    pack_a: bool
    pack_b: bool
    swapped: bool
    store: Literal["tma", "direct"]
    tiles: int
    grid: int
    waves: float
    launches: int
    workspace_bytes: int
    flops: float
    bytes: float

    def __str__(self) -> str:
        lines = {"path": f"{self.path}: {_PATHS[self.path]}", "reason": self.reason}
        if self.path == "gemm":
            packed = [name for name, pack in (("a", self.pack_a), ("b", self.pack_b)) if pack]
            lines |= {
                "config": self.config,
                "majors": self.majors + (", computed as the transposed product" if self.swapped else ""),
                "operands": f"{' and '.join(packed)} packed first" if packed else "read in place",
                "store": _STORES[self.store],
                "grid": f"{self.grid} CTAs for {self.tiles} tiles: {self.waves:.2f} waves"
                + (f" in {self.launches} launches" if self.launches > 1 else ""),
                "workspace": f"{self.workspace_bytes} bytes",
            }
        intensity = f", {self.flops / self.bytes:.0f} FLOP/byte" if self.bytes else ""
        lines["work"] = f"{self.flops / 1e9:.3f} GFLOP, {self.bytes / 1e6:.3f} MB{intensity}"
        return "\n".join(f"{name + ':':<11}{text}" for name, text in lines.items())


@dataclass
class _Operand:
    """One operand as C++ wants it: [*batch, rows, cols] with strides in elements."""

    name: str
    shape: list[int]
    strides: list[int]
    dtype: str
    alignment: int = 256
    device: int | None = None
    is_vector: bool = False  # was 1-D


def plan(
    a: Any = None,
    b: Any = None,
    /,
    *,
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    dtype: Any = "bfloat16",
    majors: str = "kk",
    batch: tuple[int, ...] = (),
    bias: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    out_dtype: Any = None,
    batch_invariant: bool | None = None,
    sm_limit: int | None = None,
    config: str | None = None,
    device: Any = None,
) -> Plan:
    """What `matmul` would run for these operands, or for these sizes; launches nothing and needs no GPU.

    Either two operands (torch tensors, meta and fake ones too, JAX arrays, jax.ShapeDtypeStruct), of which
    only shape, dtype, strides and address are looked at (JAX: row-major), or `m`, `n`, `k` with `dtype`,
    `majors` and `batch`. The majors name the contiguous dimension of A and of B: "kk" is A (M, K) and
    B (N, K).T, both row-major.

    `bias` and `c` may be tensors or True. The other options are matmul's. `device` is a GPU of this machine
    ("cuda:0", 0, ...); None means the operands' own GPU, else an H200 with 132 SMs.

    Raises TypeError and ValueError as `matmul` would, RuntimeError for a `device` that is not there.
    """
    if a is None and b is None:
        left, right = _from_sizes(m, n, k, dtype, majors, batch)
    elif a is None or b is None or not (m is n is k is None):
        given = [name for name, x in zip("abmnk", (a, b, m, n, k), strict=True) if x is not None]
        raise TypeError(
            f"hopgemm.plan: the arguments are {', '.join(given)}; must be two operands, or m=, n= and k=, "
            "not a mixture. Give what is missing, or leave the others out"
        )
    else:
        left, right = _from_operand("a", a), _from_operand("b", b)
        if left.dtype != right.dtype or left.dtype not in ("bfloat16", "float16"):
            raise TypeError(
                f"hopgemm.plan: a is {left.dtype} and b is {right.dtype}; must be one dtype, bfloat16 or "
                "float16. Cast them"
            )
    product, where = _described(left, right, out, out_dtype)
    if device is not None:
        where["device"] = device_index(device)
    _cache.install()
    settings = _context.current()
    planned = _core.plan(
        *product,
        **where,
        alpha=_number("alpha", alpha),
        beta=_number("beta", beta),
        c=c is not None and c is not False,
        bias=bias is not None and bias is not False,
        config=_context.check_config("plan", config),
        sm_limit=_context.check_sm_limit("plan", sm_limit, settings.sm_limit),
        batch_invariant=_context.check_flag(
            "plan", "batch_invariant", batch_invariant, settings.batch_invariant
        ),
    )
    return Plan(**planned)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, (SupportsFloat, SupportsIndex)):
        raise TypeError(
            f"hopgemm.plan: {name} is {shown(value)}; must be a number. "
            "Convert it with float(), or leave it out"
        )
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"hopgemm.plan: {name} is an integer beyond all floats; must be a number that float32 holds. "
            "Scale an operand, or the result"
        ) from None


def operands(a: Any, b: Any, out: Any = None, out_dtype: Any = None) -> tuple[list[Any], dict[str, Any]]:
    """How `_core.plan` wants a product of two operands described: its positional arguments, and `alignment`
    and `device`. Raises as `plan`."""
    return _described(_from_operand("a", a), _from_operand("b", b), out, out_dtype)


def sizes(
    m: int, n: int, k: int, dtype: Any, majors: str, batch: tuple[int, ...], out_dtype: Any
) -> tuple[list[Any], dict[str, Any]]:
    """`operands` of that size and layout, as they lie when they are made."""
    return _described(*_from_sizes(m, n, k, dtype, majors, batch), None, out_dtype)


def _described(left: _Operand, right: _Operand, out: Any, out_dtype: Any) -> tuple[list[Any], dict[str, Any]]:
    batch_shape, rows, cols, depth = _product_shape(left, right)
    result = _result(out, left, right, batch_shape, rows, cols)
    out_name = dtype_name(out_dtype) if out_dtype is not None else (result.dtype or left.dtype)
    strides = [_broadcast(left, batch_shape), _broadcast(right, batch_shape), result.strides]
    product = [left.dtype, out_name, rows, cols, depth, batch_shape, *strides]
    alignment = (left.alignment, right.alignment, result.alignment)
    return product, {"alignment": alignment, "device": left.device}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype given as a torch dtype, a NumPy or JAX one, or a text such as "bf16"."""
    named = (
        dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", dtype)
    )
    text = str(named).removeprefix("torch.")
    return _DTYPES.get(text, text)


def _from_sizes(
    m: Any, n: Any, k: Any, dtype: Any, majors: str, batch: tuple[int, ...]
) -> tuple[_Operand, _Operand]:
    sizes = {"m": m, "n": n, "k": k, **{f"batch[{i}]": size for i, size in enumerate(batch)}}
    for name, size in sizes.items():
        if size is None:
            raise TypeError(
                f"hopgemm.plan: {name} is missing; sizes are m=, n= and k=, all three. Give it, or two "
                "operands"
            )
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"hopgemm.plan: {name} is {size!r}; must be an integer, 0 or more. Give a size")
    if majors not in ("kk", "kn", "mk", "mn"):
        raise ValueError(
            f'hopgemm.plan: majors is {majors!r}; must be "kk", "kn", "mk" or "mn": A\'s, then B\'s. '
            'Write "kn" where both operands are row-major'
        )
    name = dtype_name(dtype)
    a_strides = [k, 1] if majors[0] == "k" else [1, m]
    b_strides = [1, k] if majors[1] == "k" else [n, 1]
    outer = _row_major([*batch, 1])[:-1]
    return (
        _Operand("a", [*batch, m, k], [s * m * k for s in outer] + a_strides, name),
        _Operand("b", [*batch, k, n], [s * k * n for s in outer] + b_strides, name),
    )


def _from_operand(name: str, x: Any) -> _Operand:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise TypeError(
            f"hopgemm.plan: {name} is {x!r:.60} ({type(x).__name__}); must be a tensor, an array or a "
            "ShapeDtypeStruct. Convert it, or give m=, n= and k="
        )
    shape = [int(size) for size in x.shape]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        strides, alignment, device = list(x.stride()), _alignment(x), x.device.index if x.is_cuda else None
    else:
        strides, alignment, device = _row_major(shape), 256, _jax_device(x)
    return _Operand(name, shape, strides, dtype_name(x.dtype), alignment, device)


def _alignment(tensor: Any) -> int:
    # Fake tensors have no address, and warn or raise or answer 0: an allocator's blocks are aligned.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            return 256
    return min(256, address & -address) or 256


def _jax_device(array: Any) -> int | None:
    try:
        (device,) = array.devices()
    except (AttributeError, TypeError, ValueError):  # abstract, traced or on several devices
        return None
    return device.local_hardware_id if device.platform in ("gpu", "cuda") else None


def _product_shape(a: _Operand, b: _Operand) -> tuple[list[int], int, int, int]:
    """Batch shape, M, N, K; 1-D operands become a row and a column, in place."""
    for x in (a, b):
        if not x.shape:
            raise ValueError(
                f"hopgemm.plan: {x.name} has 0 dimensions; must have 1 or more. Multiply with * instead"
            )
    a_shape, b_shape = tuple(a.shape), tuple(b.shape)
    if len(a_shape) == 1:
        a.shape, a.strides, a.is_vector = [1, *a_shape], [a_shape[0], *a.strides], True
    if len(b_shape) == 1:
        b.shape, b.strides, b.is_vector = [*b_shape, 1], [*b.strides, 1], True
    (*a_batch, m, k), (*b_batch, depth, n) = a.shape, b.shape
    if k != depth:
        raise ValueError(
            f"hopgemm.plan: a is {a_shape} and b is {b_shape}; K must be equal, found {k} and {depth}. "
            "Is a transpose (.mT) missing?"
        )
    width = max(len(a_batch), len(b_batch))
    a_batch, b_batch = ([1] * (width - len(s)) + s for s in (a_batch, b_batch))
    pairs = list(zip(a_batch, b_batch, strict=True))
    if any(p != q and 1 not in (p, q) for p, q in pairs):
        raise ValueError(
            f"hopgemm.plan: a is {a_shape} and b is {b_shape}; batch dimensions must broadcast. "
            "Insert one of size 1, as a[:, None] does"
        )
    return [q if p == 1 else p for p, q in pairs], m, n, k


def _broadcast(x: _Operand, batch: list[int]) -> list[int]:
    *own, _, _ = x.shape
    strides = [0 if size == 1 else stride for size, stride in zip(own, x.strides[:-2], strict=True)]
    return [0] * (len(batch) - len(own)) + strides + x.strides[-2:]


def _result(out: Any, a: _Operand, b: _Operand, batch: list[int], m: int, n: int) -> _Operand:
    if out is None:
        return _Operand("out", [*batch, m, n], _row_major([*batch, m, n]), "")
    result = _from_operand("out", out)
    shape = batch + [m] * (not a.is_vector) + [n] * (not b.is_vector)
    if result.shape != shape:
        raise ValueError(
            f"hopgemm.plan: out is {tuple(result.shape)}; must be the product's shape, {tuple(shape)}. "
            "Leave it out, or give one of that shape"
        )
    if a.is_vector:
        result.strides.insert(len(batch), n)
    if b.is_vector:
        result.strides.append(1)
    return result


def _row_major(shape: list[int]) -> list[int]:
    return [prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape))]
