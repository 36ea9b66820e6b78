"""hopgemm for PyTorch: `matmul` on torch.Tensor, what stands on it, and the operators torch.ops.hopgemm.*.

    import torch, hopgemm.torch
    d = hopgemm.torch.matmul(a, b)
    model = hopgemm.torch.override_model(model)  # its torch.nn.Linear layers become hopgemm.torch.Linear
    with hopgemm.torch.override(): ...  # torch's own products run the kernel, forward and backward

Needs torch 2.10 or later.
"""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.autograd.graph import increment_version as _increment_version

from . import _cache, _core, _torch_autograd, _torch_checks, _torch_cpu, _torch_flops, _torch_transforms
from ._context import check_config as _check_config
from ._context import check_flag as _check_flag
from ._context import check_sm_limit as _check_sm_limit
from ._context import constant_while_tracing as _constant_while_tracing
from ._context import current as _current
from ._context import shown as _shown
from ._torch_aten import override
from ._torch_autograd import PLAIN as _PLAIN
from ._torch_autograd import has_mm_gradient as _has_mm_gradient
from ._torch_autograd import is_compiling as _is_compiling
from ._torch_autograd import is_grad_enabled as _is_grad_enabled
from ._torch_autograd import is_intercepted as _is_intercepted
from ._torch_autograd import mm_with_gradient as _mm_with_gradient
from ._torch_autograd import product as _product
from ._torch_library import gemm_out as _gemm_out
from ._torch_library import raw_mm as _raw_mm
from ._torch_library import raw_mm_bias as _raw_mm_bias
from ._torch_library import raw_mm_out as _raw_mm_out
from ._torch_linear import Linear, linear
from ._torch_override import override_model

__all__ = ["Linear", "linear", "matmul", "override", "override_model"]

# Where users, and pickled models, find them. (The modules that define them import this one.)
for _public in (Linear, linear, override, override_model):
    _public.__module__ = __name__

_torch_cpu.register()
_torch_transforms.register()
_torch_autograd.register()
_torch_flops.register()
_cache.install()


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    /,
    *,
    bias: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
    fallback: bool | None = None,
    sm_limit: int | None = None,
    config: str | None = None,
) -> torch.Tensor:
    """alpha * a @ b + beta * c + bias, summed in fp32 and rounded once; shapes as torch.matmul.

    Differentiable to any order in a, b, c and bias, also under torch.func, autocast and torch.compile (in
    forward mode the compiled function has to hold the jvp or the dual level: of dual tensors that it is given
    it drops the tangents, as torch's own does where Inductor fuses). On CPU tensors torch's own operations
    compute the same.

    Args:
        a: (..., M, K) or (K,), bfloat16 or float16, any strides.
        b: (..., K, N) or (K,), of a's dtype and on a's device. Batch dimensions broadcast, to at most 6.
        bias: (N,), added to every row; a's dtype or float32.
        c: broadcasts to the result; a's dtype or float32. Not read where beta is 0.
        alpha, beta: Python numbers that float32 holds; infinities and NaN too.
        out: where the result goes, of its exact shape and any strides; its dtype is the result's. May be
            `c` itself, may share no memory with the rest. No autograd.
        out_dtype: a's dtype (default) or torch.float32. A float32 gradient is rounded once to a's dtype.
        batch_invariant: a row's bits depend neither on M nor on its position, batch or neighbours (GPU).
        fallback: where the kernel cannot run, use torch's own product, and warn once, instead of raising.
        sm_limit: at most so many SMs; 0: all.
        config: the name of one compiled kernel, as in hopgemm.plan(...).config; by default hopgemm chooses.

    None for batch_invariant, fallback and sm_limit means the enclosing `with` block's setting, else the
    environment's; under torch.compile it is read while tracing, and another setting compiles again.

    Returns:
        A new contiguous tensor, or `out`.

    Raises:
        TypeError: an argument's type, dtype, device or layout is not supported.
        ValueError: shapes that do not fit, memory that overlaps, or a value outside its rule.
        RuntimeError: the GPU or its driver cannot run the kernel, and fallback is off; or `out` beside an
            argument that requires grad.
    """
    # Most calls, in as few steps as can be: plain tensors in eager code. Each test costs some 20 to 60 ns.
    if (
        not _is_compiling()  # first: Dynamo then skips the rest
        and c is None
        and out_dtype is None
        and config is None
        and batch_invariant is None
        and fallback is None
        and sm_limit is None
        and type(a) in _PLAIN
        and type(b) in _PLAIN
        and (alpha == 1) is True  # a tensor compares to a tensor
        and (beta == 0) is True
        and _current() == (0, False, False, False)
        and not _is_intercepted()
    ):
        grad = _is_grad_enabled()
        try:
            if grad and (a.requires_grad or b.requires_grad):
                if bias is None and out is None and _has_mm_gradient(a, b):
                    return _mm_with_gradient(a, b)
            elif a.dim() > 1 and b.dim() > 1:
                if out is None:
                    if bias is None:
                        return _raw_mm(a, b)
                    if type(bias) in _PLAIN and bias.dim() == 1 and not (grad and bias.requires_grad):
                        return _raw_mm_bias(a, b, bias)
                elif (
                    bias is None
                    and type(out) in _PLAIN
                    and out.is_contiguous()
                    and not (grad and out.requires_grad)
                ):
                    _increment_version(out)
                    _raw_mm_out(out, a, b)
                    return out
        except (ValueError, RuntimeError):
            _explain(a, b, None, bias, None, out)
            raise

    _torch_checks.check_types(a, b, c, bias, alpha, beta)
    settings = _current()
    may_fall_back = _check_flag("matmul", "fallback", fallback, settings.fallback)
    use_torch = may_fall_back and not _kernel_runs_on(a.device)
    options = (
        _check_config("matmul", config),
        _check_sm_limit("matmul", sm_limit, settings.sm_limit),
        _check_flag("matmul", "batch_invariant", batch_invariant, settings.batch_invariant),
    )
    if out is not None:
        _check_out(out, out_dtype, a, b, c, bias)
        if c is not None and (c is out or (not _is_compiling() and _torch_checks.is_same_view(c, out))):
            c = None  # as the operator wants it: beta without c reads `out`
    row, column = a.dim() == 1, b.dim() == 1
    d = out
    if row or column:
        _torch_checks.check_vectors(a, b, c, bias)
        a, b = a.unsqueeze(0) if row else a, b.unsqueeze(-1) if column else b
        c = c if c is None or c.dim() == 0 else _as_matrix(c, row, column)
        d = d if d is None else _as_matrix(d, row, column)
    if settings.autotune and config is None and not use_torch and not _is_compiling():
        _tuning().before_call(a, b, d, out_dtype, *options[1:])
    if c is not None and c.dim() > 2 and max(a.dim(), b.dim()) > 4:
        # HAZARD: a, b and the result fold into a kernel's two batch dimensions; c may not where it repeats.
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        c = c.expand(*batch, *c.shape[-2:]).contiguous()
    if d is not None:
        _matmul_into(d, use_torch, (a, b, c, bias, alpha, beta), options)
        return out  # type: ignore[return-value]
    d = _matmul(use_torch, (a, b, c, bias, alpha, beta, out_dtype), options)
    d = d.squeeze(-1) if column else d
    return d.squeeze(-1 if column else -2) if row else d


def _tuning() -> Any:
    from . import _tune_torch  # it imports this module

    return _tune_torch


def _as_matrix(t: torch.Tensor, row: bool, column: bool) -> torch.Tensor:
    """Gives c or out the dimensions that the result has while 1-D operands are matrices."""
    t = t.unsqueeze(-1) if column else t
    return t.unsqueeze(-2) if row else t


def _matmul(use_torch: Any, args: tuple[Any, ...], options: tuple[Any, ...]) -> torch.Tensor:
    if use_torch:
        return _torch_product(*args)
    if _is_compiling():
        return _product(*args, *options)
    try:
        return _product(*args, *options)
    except (ValueError, RuntimeError):
        a, b, c, bias, _, _, out_dtype = args
        _explain(a, b, c, bias, out_dtype)
        raise


def _matmul_into(d: torch.Tensor, use_torch: Any, args: tuple[Any, ...], options: tuple[Any, ...]) -> None:
    a, b, c, bias, alpha, beta = args
    # The kernel writes rows or columns of neighbouring elements, and a batch that folds into two dimensions.
    written = (d.stride(-1) == 1 or d.stride(-2) == 1) and (d.dim() <= 4 or d.is_contiguous())
    if use_torch or not written:
        added = d if c is None and beta != 0 else c
        shape = _torch_checks.check_tensors(a, b, added, bias, d.dtype)
        _torch_checks.check_out(d, shape, a, b, c, bias)
        with torch.no_grad():
            d.copy_(_matmul(use_torch, (a, b, added, bias, alpha, beta, d.dtype), options))
    elif _is_compiling():
        _gemm_out(d, *args, *options)
    else:
        # Before the write, which it may refuse. No kernel of ours is at ADInplaceOrView: nobody else does it.
        _increment_version(d)
        try:
            _gemm_out(d, *args, *options) if options != ("", 0, False) else _gemm_out(d, *args)
        except (ValueError, RuntimeError):
            _explain(a, b, c, bias, None, d)
            raise


def _check_out(
    out: Any, out_dtype: torch.dtype | None, a: torch.Tensor, b: torch.Tensor, c: Any, bias: Any
) -> None:
    if not isinstance(out, torch.Tensor):
        raise TypeError(
            f"hopgemm.matmul: out is {_shown(out)}; it must be a torch.Tensor or None. "
            "Make it with a.new_empty(shape), or leave it out"
        )
    _torch_checks.check_values("out", out)
    _torch_checks.check_dense("c", c)
    if out_dtype is not None and out_dtype != out.dtype:
        raise TypeError(
            f"hopgemm.matmul: out is {out.dtype} but out_dtype is {out_dtype}; both must be one dtype. "
            "Leave out_dtype out"
        )
    if _is_grad_enabled() and (
        out.requires_grad
        or a.requires_grad
        or b.requires_grad
        or (c is not None and c.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        raise RuntimeError(
            "hopgemm.matmul: out is given and an argument requires grad; out= does not support automatic "
            "differentiation. Call without out=, or under torch.no_grad()"
        )


def _explain(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> None:
    """After an operator refused: raises the TypeError or ValueError that says why, if the tensors are why."""
    if out is None:
        a, b, c, bias = _torch_transforms.autocast(a.device.type, a, b, c, bias)  # type: ignore[assignment]
        _torch_checks.check_tensors(a, b, c, bias, out_dtype)
    else:  # autocast leaves these operators alone
        _torch_checks.check_out(out, _torch_checks.check_tensors(a, b, c, bias, out.dtype), a, b, c, bias)
    if a.device.type not in ("cpu", "cuda", "meta"):
        raise RuntimeError(
            f"hopgemm.matmul: a is on {a.device}; supported: CUDA and CPU. fallback=True takes torch's "
            "product there"
        )


# ---- the fallback ----


def _torch_product(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    bias: torch.Tensor | None,
    alpha: float,
    beta: float,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:
    a, b, c, bias = _torch_transforms.autocast(a.device.type, a, b, c, bias)  # type: ignore[assignment]
    _torch_checks.check_tensors(a, b, c, bias, out_dtype)
    if c is None and bias is None and alpha == 1 and out_dtype in (None, a.dtype):
        return torch.matmul(a, b).contiguous()  # in 16 bits: faster than fp32, and rounded once too
    return _torch_cpu.product(a, b, c, bias, alpha, beta, out_dtype)


_runs_on: dict[torch.device, bool] = {}


@_constant_while_tracing  # it cannot change within a process
def _kernel_runs_on(device: torch.device) -> bool:
    """Is there a kernel of ours for this device? Warns where not, once a device."""
    if device not in _runs_on:
        try:
            if device.type == "cuda":
                # The smallest product there is: the C++ side knows what it needs of a device.
                index = torch.cuda.current_device() if device.index is None else device.index
                _core.plan("bfloat16", "bfloat16", 8, 8, 8, [], [8, 1], [8, 1], [8, 1], device=index)
            elif device.type not in ("cpu", "meta"):
                raise RuntimeError(f"hopgemm.matmul: {device} is not a CUDA device")
            _runs_on[device] = True
        except RuntimeError as error:
            _runs_on[device] = False
            warnings.warn(f"{error}; torch's own product is used", RuntimeWarning, stacklevel=3)
    return _runs_on[device]
