"""torch.nn.Linear and F.linear over `hopgemm.torch.matmul`.

Which of their products go to the kernel, and which stay with torch, is decided here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import torch as _frontend  # the module, for what it defines later: they import each other
from ._context import current
from ._torch_autograd import PLAIN, is_autocast_on, is_compiling, is_intercepted
from ._torch_checks import OPERAND_DTYPES
from ._torch_linear_eager import linear_in_eager_code
from ._torch_main_grad import linear_into_main_grad, wants_main_grad
from ._torch_sharding import is_dtensor

_MAX_DIMS = 8  # of an operand of matmul: 6 batch dimensions and a matrix


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias: torch.nn.functional.linear, by the kernel where it can run.

    hopgemm.torch.matmul(x, weight.mT, bias=bias) takes bfloat16 and float16: on a Hopper GPU the kernel,
    which reads the weight in place and folds x's leading dimensions into M; on the CPU the same numerics.
    Product and bias are summed in fp32 and rounded once, so that the last bit may differ from torch's.
    Differentiable as matmul.

    All else is left to torch's own F.linear, errors included: other dtypes (float32, float64, mixed ones),
    other GPUs (with one warning), sparse and nested tensors, wrapper subclasses other than DTensor, 1-D
    weights.

    Under autocast the region's dtype counts: float32 parameters are cast, once a region, used by the kernel,
    and get float32 gradients; a float32 bias is added as it is. In eager code the kernel writes the float32
    gradients of x and weight itself, unrounded; compiled code rounds them to the region's dtype first, as
    torch does.

    DTensors run the kernel on their shards, as torch.distributed.tensor.parallel lays them out: columns,
    rows, a shard of x's rows, and sums that wait for an all-reduce, without a gather.

    A weight with an attribute `main_grad`, a float32 tensor of its shape (as Megatron has it), gets its
    gradient there: the kernel adds the unrounded float32 sums to the buffer, and `weight.grad` stays None.

        for p in model.parameters():
            p.main_grad = torch.zeros_like(p, dtype=torch.float32)

    Zero it between steps and let the optimizer read it. It gets what a backward adds to `weight.grad`:
    nothing from autograd.grad(loss, x) or backward(inputs=[x]), and autograd.grad(loss, weight) raises. That
    is for parameters that are no DTensors, eager code and first derivatives: no torch.compile, no torch.func.
    Hooks of the weight see no gradient, so DistributedDataParallel does not
    reduce it: reduce main_grad yourself.

    Args:
        x: (..., K), any rank and strides.
        weight: (N, K).
        bias: (N,) or None; x's dtype or float32.

    Returns:
        (..., N), contiguous where the kernel ran.

    Raises:
        TypeError: 16-bit tensors on different devices; a main_grad that is no float32 tensor on weight's
            device, beside an x that is left to torch, or of a weight that is no leaf or a DTensor.
        ValueError: a main_grad that has not weight's shape.
        RuntimeError: a main_grad in a compiled call; from autograd.grad of a weight that has one.
        RuntimeError, TypeError: torch's own, from F.linear, for everything else.
    """
    if (
        not is_compiling()  # first: Dynamo then skips the rest
        and type(x) in PLAIN
        and type(weight) in PLAIN
        and (bias is None or type(bias) in PLAIN)
        and current() == (0, False, False, False)
        and not is_intercepted()
        and not wants_main_grad(weight)
    ):
        d = linear_in_eager_code(x, weight, bias)
        if d is not None:
            return d
    dtype = _dtype_of_product(x, weight, bias)
    if wants_main_grad(weight):
        return linear_into_main_grad(x, weight, bias, dtype is not None)
    if dtype is None:
        return F.linear(x, weight, bias)
    # Here, not behind the transpose in matmul: Inductor would write the cast once more, the other way round.
    weight = weight if weight.dtype == dtype else weight.to(dtype)
    if x.dim() <= _MAX_DIMS:
        return _frontend.matmul(x, weight.mT, bias=bias)
    d = _frontend.matmul(x.flatten(0, -2), weight.mT, bias=bias)
    return d.reshape(*x.shape[:-1], weight.shape[0])


class Linear(torch.nn.Linear):
    """torch.nn.Linear whose forward is hopgemm.torch.linear: a drop-in for training code that mixes dtypes.

    The same constructor, parameters, initialization, state dict and repr, and an instance of
    torch.nn.Linear. bfloat16 and float16, or an autocast region of them, go to the kernel; float32 and
    whatever else it does not take goes to torch's own F.linear. `hopgemm.torch.linear` has the exact rule,
    and what it does with a `weight.main_grad`.

        layer = hopgemm.torch.Linear(4096, 1024, dtype=torch.bfloat16, device="cuda")
        y = layer(x)  # x (..., 4096) bfloat16 -> y (..., 1024) bfloat16
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`input` (..., in_features) -> (..., out_features)."""
        return linear(input, self.weight, self.bias)


def _dtype_of_product(x: Any, weight: Any, bias: Any) -> torch.dtype | None:
    """The dtype that the kernel multiplies in; None where it does not take the call."""
    if not (_is_dense(x) and _is_dense(weight)) or weight.dim() != 2 or x.dim() == 0:
        return None
    if x.shape[-1] != weight.shape[1]:
        return None
    region = _autocast_dtype(x.device) if is_autocast_on() else None
    dtype = _dtype_in(region, x)
    if dtype not in OPERAND_DTYPES or _dtype_in(region, weight) != dtype:
        return None
    if bias is not None:
        if not _is_dense(bias) or bias.dim() != 1 or bias.shape[0] != weight.shape[0]:
            return None
        if bias.dtype != torch.float32 and _dtype_in(region, bias) != dtype:
            return None
    # HAZARD: matmul refuses different devices; F.linear of CPU and meta tensors returns garbage (torch 2.13).
    takes = x.is_cpu or x.is_meta or (x.is_cuda and bool(_frontend._kernel_runs_on(x.device)))
    return dtype if takes else None


def _is_dense(t: Any) -> bool:
    """Is this a strided tensor or DTensor, and no other wrapper around tensors (a quantized weight)?"""
    if type(t) not in PLAIN and not is_dtensor(t):
        if not isinstance(t, torch.Tensor) or is_traceable_wrapper_subclass(t):
            return False
    # HAZARD: a nested tensor of the older kind has layout strided too, but no shape.
    return t.layout == torch.strided and not t.is_nested


def _autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of the autocast region on `device`; None outside of one."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def _dtype_in(region: torch.dtype | None, t: torch.Tensor) -> torch.dtype:
    """What matmul's autocast makes of t's dtype: the region's, except of float64 and of what is no float."""
    if region is None or t.dtype == torch.float64 or not t.is_floating_point():
        return t.dtype
    return region
