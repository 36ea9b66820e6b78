"""Derivatives of the product: our own kernel at the Autograd key, and the short cuts of plain eager code.

torch.library.register_autograd would register a similar kernel, but it drops the tangent of a dual tensor
without a word, fails under torch.func.grad, and costs 4 us more a call (measured with torch 2.13).
"""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

import functools
from typing import Any

import torch
from torch._functorch import autograd_function as functorch
from torch._guards import TracingContext
from torch.autograd import forward_ad
from torch.utils import checkpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ._torch_checks import lies_by_column
from ._torch_library import LIBRARY, Args, gemm, raw_gemm, raw_mm, raw_mm_backward, raw_mm_bias
from ._torch_sharding import flattens_in_place, is_dtensor, register_if_used
from ._torch_transforms import autocast

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))  # types that nothing intercepts
are_transforms_active = torch._C._are_functorch_transforms_active
dispatch_modes = torch._C._len_torch_dispatch_stack
is_autocast_on = torch._C._is_any_autocast_enabled
is_compiling = torch.compiler.is_compiling
is_grad_enabled = torch.is_grad_enabled


def is_intercepted() -> bool:
    """Does a mode or a transform want to see the public operator?"""
    return bool(dispatch_modes() or are_transforms_active() or forward_ad._current_level >= 0)


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: torch.dtype | None = None,
    config: str = "",
    sm_limit: int = 0,
    batch_invariant: bool = False,
) -> torch.Tensor:
    """The operator `gemm` by the shortest way: same result, same derivatives.

    Operands have 2 and more dimensions.
    """
    # The order matters: Dynamo stops at the first.
    if is_compiling() or type(a) not in PLAIN or type(b) not in PLAIN or is_intercepted():
        register_if_used()
        return gemm(a, b, c, bias, alpha, beta, out_dtype, config, sm_limit, batch_invariant)
    if is_grad_enabled() and (
        a.requires_grad
        or b.requires_grad
        or (c is not None and c.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        if is_autocast_on():  # here, not below: gradients must get the dtypes from before the cast
            a, b, c, bias = autocast(a.device.type, a, b, c, bias)  # type: ignore[assignment]
        return _apply(raw_gemm, a, b, c, bias, alpha, beta, out_dtype, config, sm_limit, batch_invariant)
    if (
        not config and not sm_limit and not batch_invariant
    ):  # each argument given costs up to 0.4 us of conversion
        return raw_gemm(a, b, c, bias, alpha, beta, out_dtype)
    return raw_gemm(a, b, c, bias, alpha, beta, out_dtype, config, sm_limit, batch_invariant)


def has_mm_gradient(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Can `mm_with_gradient` take these? Either b is one matrix, or each matrix of a has its own b."""
    return a.dim() > 1 and (b.dim() == 2 or (b.dim() > 2 and a.shape[:-2] == b.shape[:-2]))


def mm_with_gradient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in plain eager code where an operand requires grad."""
    if is_autocast_on():
        a, b = autocast(a.device.type, a, b)  # type: ignore[assignment]
    return _apply_mm(a, b)


# ---- gradients of one operand ----


def _grad_a(grad: torch.Tensor, b: torch.Tensor, shape: torch.Size, **options: Any) -> torch.Tensor:
    if shape[:-2] == grad.shape[:-2]:
        return product(grad, b.mT, **options)
    full = product(grad, b.mT, out_dtype=torch.float32, **options)
    return _sum_to(full, shape).to(grad.dtype)


def _grad_b(
    a: torch.Tensor, grad: torch.Tensor, shape: torch.Size, by_column: bool, **options: Any
) -> torch.Tensor:
    """`by_column`: does b lie so? Its gradient does too: the kernel writes it so, not a copy behind it."""
    same = shape[:-2] == grad.shape[:-2]
    if not same and len(shape) == 2 and a.shape[:-1] == grad.shape[:-1] and rows_fold(a) and rows_fold(grad):
        # A weight shared by the batch: one product that contracts batch and M, instead of a sum of products.
        a, grad, same = a.flatten(0, -2), grad.flatten(0, -2), True
    if same:
        return product(grad.mT, a, **options).mT if by_column else product(a.mT, grad, **options)
    full = product(a.mT, grad, out_dtype=torch.float32, **options)
    return _sum_to(full, shape).to(grad.dtype)


def rows_fold(t: torch.Tensor) -> bool:
    """Are all rows of `t` one matrix without a copy, or a gather of shards?"""
    if not flattens_in_place(t):
        return False
    pairs = zip(t.shape[1:-1], t.stride()[:-2], t.stride()[1:-1], strict=True)
    return all(outer == size * inner for size, outer, inner in pairs)


def _sum_to(t: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Sums in fp32 the dimensions along which a tensor of `shape` was broadcast to t's; fp32 of `shape`."""
    new = t.dim() - len(shape)
    dims = [i for i in range(t.dim()) if i < new or (shape[i - new] == 1 and t.shape[i] != 1)]
    total = t.sum(dims, keepdim=True, dtype=torch.float32) if dims else t.float()
    return total.reshape(shape)


def _grad_c(grad: torch.Tensor, beta: float, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    if beta == 0:
        return grad.new_zeros(shape, dtype=dtype)
    if beta == 1 and shape == grad.shape:
        return grad.to(dtype)
    total = _sum_to(grad, shape)
    return (total if beta == 1 else beta * total).to(dtype)


# ---- autograd.Function ----


class _Gemm(torch.autograd.Function):
    """`call` runs the product below autograd: the raw operator, or a redispatch of the public one."""

    @staticmethod
    def forward(ctx: Any, call: Any, *args: Any) -> torch.Tensor:
        out: torch.Tensor = call(*args)
        a, b, c, bias, alpha, beta, _, _, sm_limit, batch_invariant = args
        _, need_a, need_b, *_ = ctx.needs_input_grad
        ctx.save_for_forward(a, b)  # dropped when the call ends
        ctx.save_for_backward(a if need_b else None, b if need_a else None)
        ctx.shapes = [None if t is None else t.shape for t in (a, b, c, bias)]
        ctx.dtypes = [None if t is None else t.dtype for t in (a, c, bias, out)]
        ctx.b_lies_by_column = lies_by_column(b)
        ctx.beta = beta
        ctx.out_shape = out.shape
        # A config is a kernel for the forward's layouts: the backward chooses its own.
        ctx.options = {"alpha": alpha, "sm_limit": sm_limit, "batch_invariant": batch_invariant}
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b = ctx.saved_tensors
        _, need_a, need_b, need_c, need_bias, *_ = ctx.needs_input_grad
        a_shape, b_shape, c_shape, bias_shape = ctx.shapes
        dtype, c_dtype, bias_dtype, _ = ctx.dtypes
        operand = grad.to(dtype)  # an fp32 cotangent is rounded once
        grad_a = _grad_a(operand, b, a_shape, **ctx.options) if need_a else None
        grad_b = _grad_b(a, operand, b_shape, ctx.b_lies_by_column, **ctx.options) if need_b else None
        grad_c = _grad_c(grad, ctx.beta, c_shape, c_dtype) if need_c else None
        grad_bias = None
        if need_bias:
            rows = torch.Size((*bias_shape[:-1], 1, bias_shape[-1]))
            grad_bias = _sum_to(grad, rows).reshape(bias_shape).to(bias_dtype)
        return None, grad_a, grad_b, grad_c, grad_bias, *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, _: Any, ta: Any, tb: Any, tc: Any, tbias: Any, *rest: Any) -> torch.Tensor:
        # HAZARD: as in forward, apply has switched forward mode off, and a level below may need it. With it
        # on, the primals must not be duals of this level again.
        with forward_ad._set_fwd_grad_enabled(True):
            a, b = (forward_ad.unpack_dual(t, level=0).primal for t in ctx.saved_tensors)  # the one there is
            terms = []
            if ta is not None:
                terms.append(product(ta, b, out_dtype=torch.float32, **ctx.options))
            if tb is not None:
                terms.append(product(a, tb, out_dtype=torch.float32, **ctx.options))
            if tc is not None:
                terms.append(ctx.beta * tc.float())
            if tbias is not None:
                terms.append((tbias.unsqueeze(-2) if tbias.dim() > 1 else tbias).float())
            total = functools.reduce(torch.add, terms).to(ctx.dtypes[3])
            return total if total.shape == ctx.out_shape else total.expand(ctx.out_shape).clone()


class _Mm(torch.autograd.Function):
    """_Gemm for two operands and nothing else, in plain eager code: half the cost."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        need_a, need_b = ctx.needs_input_grad
        ctx.save_for_backward(a if need_b else None, b if need_a else None)
        if not need_a:  # an attribute costs 0.3 us
            ctx.b_shape, ctx.b_lies_by_column = b.shape, lies_by_column(b)
        return raw_mm(a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        a, b = ctx.saved_tensors
        plain = not is_grad_enabled() and type(grad) in PLAIN and not is_intercepted()
        if plain and a is not None and b is not None:
            if a.dim() == 2 or b.dim() > 2 or (rows_fold(a) and rows_fold(grad)):
                return raw_mm_backward(grad, a, b)
        if b is None:
            return None, _grad_b(a, grad, ctx.b_shape, ctx.b_lies_by_column)
        return product(grad, b.mT), None if a is None else _grad_b(a, grad, b.shape, lies_by_column(b))


# Function.apply in Python looks for functorch and wants setup_context. The C method below it is what
# functorch itself calls at each level, and at the Autograd key there is exactly one level to handle.
_apply = super(torch.autograd.Function, _Gemm).apply
_apply_mm = super(torch.autograd.Function, _Mm).apply
# What the engine calls. torch's own looks for boxed_grads_call and vjp first: two frames more, 0.5 us.
_Mm._backward_cls.apply = _Mm.backward  # type: ignore[attr-defined]

# ---- the Autograd key ----


def _redispatch(keyset: Any, grad: bool, forward: bool, *args: Any) -> torch.Tensor:
    # HAZARD: Function.apply runs forward with both grad modes off; the levels of torch.func below, dispatch
    # modes and tensor subclasses need them as they were, or their derivatives are lost without a word.
    with (
        torch.set_grad_enabled(grad),
        forward_ad._set_fwd_grad_enabled(forward),
        torch._C._AutoDispatchBelowAutograd(),
    ):
        if _is_for_compiled_graph(args[0], args[1]):
            return _shortest(*args)
        return gemm.redispatch(keyset, *args)


def _is_for_compiled_graph(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is torch.compile tracing this? Then what is called here runs on every call of the compiled function."""
    return (
        TracingContext.try_get() is not None
        and not torch.compiler.is_exporting()  # a file should have public operators only
        and not are_transforms_active()
        and not is_dtensor(a)
        and not is_dtensor(b)
        and not _has_checkpoint_policy()
    )


def _has_checkpoint_policy() -> bool:
    """Is this in a checkpoint whose policy says by operator what to save? It knows the public ones only."""
    from torch._higher_order_ops import wrap  # while tracing: they are loaded then

    torchs = getattr(wrap, "_always_prefer_recompute", None)  # its policy where the caller gave none
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, checkpoint._CachingTorchDispatchMode) and mode.policy_fn is not torchs:
            return True
        # The recomputation: it looks up what the forward called.
        if isinstance(mode, checkpoint._CachedTorchDispatchMode) and gemm in mode.storage:
            return True
    return False


def _shortest(*given: Any) -> torch.Tensor:
    """The operator without the Python above it, and with as few arguments as can be: 4 us, not 14."""
    args = Args(*given)
    if args.c is not None or args[4:] != Args(args.a, args.b)[4:]:
        return raw_gemm(*args)
    return raw_mm(*args[:2]) if args.bias is None else raw_mm_bias(args.a, args.b, args.bias)


def _is_run_by_others(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Does a dispatch mode or a subclass of tensors run the product, other than to trace it for compile?"""
    others = dispatch_modes() or type(a) not in PLAIN or type(b) not in PLAIN
    return bool(others) and TracingContext.try_get() is None


def _autograd(keyset: Any, *given: Any) -> torch.Tensor:
    args = Args(*given)
    keyset = keyset & torch._C._after_autograd_keyset
    grad = is_grad_enabled()
    call = functools.partial(_redispatch, keyset, grad, torch._C._is_fwd_grad_enabled())
    if are_transforms_active():
        with functorch.enable_single_level_autograd_function():  # type: ignore[attr-defined]
            return _apply(call, *args)
    is_wanted = (grad and torch._C._any_requires_grad(*args[:4])) or forward_ad._current_level >= 0
    # HAZARD: apply detaches what a dispatch mode or a subclass makes of tensors of its own.
    if not is_wanted and _is_run_by_others(*args[:2]):
        return call(*args)
    # HAZARD: also where nothing seems to want a derivative. Compiled code enters forward mode in C++ alone:
    # `forward_ad._current_level` stays -1, and only apply itself sees the tangents.
    return _apply(call, *args)


def register() -> None:
    """Registers the derivatives of `gemm`; the raw operators have none and are never called where needed."""
    LIBRARY.impl("gemm", _autograd, "Autograd", with_keyset=True)
    # Without a fallthrough they pay 0.5 us for torch's "no autograd kernel" fallback when an input requires
    # grad.
    for name in ("_gemm", "_mm", "_mm_bias", "_mm_out", "_mm_backward", "_linear", "_linear_backward"):
        LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
