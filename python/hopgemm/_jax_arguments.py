"""The arguments of hopgemm.jax: what is refused, with the value found, the rule and the way out."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _context
from ._jax_primitive import F32
from ._jax_target import Options
from ._jax_trace import FP32_SUMS, Epilogue

_FLOAT32_TINY, _FLOAT32_MAX = 2.0**-149, float(np.finfo(np.float32).max)


def options(
    batch_invariant: bool | None, fallback: bool | None, sm_limit: int | None, config: str | None
) -> Options:
    settings = _context.current()
    name = _context.check_config("jax", config)
    return Options(
        "" if name == "auto" else name,
        _context.check_sm_limit("jax", sm_limit, settings.sm_limit),
        _context.check_flag("jax", "batch_invariant", batch_invariant, settings.batch_invariant),
        _context.check_flag("jax", "fallback", fallback, settings.fallback),
    )


def _found(a: Any, b: Any) -> str:
    what = [f"{x.dtype}{tuple(x.shape)}" if isinstance(x, jax.Array) else type(x).__name__ for x in (a, b)]
    return f"hopgemm.jax.matmul: a is {what[0]} and b is {what[1]}"


def check_operands(a: Any, b: Any) -> None:
    """TypeError or ValueError unless a and b are two 16-bit arrays of one dtype whose shapes fit."""
    if not (isinstance(a, jax.Array) and isinstance(b, jax.Array)):
        raise TypeError(
            f"{_found(a, b)}; both must be jax.Array. Convert with jnp.asarray, to bfloat16 or float16"
        )
    if a.dtype != b.dtype or a.dtype not in FP32_SUMS:
        rule = "both must be bfloat16 or both float16, nothing is promoted"
        raise TypeError(f"{_found(a, b)}; {rule}. Convert with .astype, or use jnp.matmul")
    x, y = a.shape, b.shape
    if not x or not y:
        raise ValueError(f"{_found(a, b)}; both must have at least 1 dimension. Multiply by a scalar with *")
    inner = y[-2] if y[1:] else y[0]
    if x[-1] != inner and isinstance(x[-1], int) and isinstance(inner, int):
        which = "second to last dimension" if y[1:] else "dimension"
        raise ValueError(
            f"{_found(a, b)}; a's last dimension ({x[-1]}) must equal b's {which} ({inner}). "
            "Transpose with .mT, or use hopgemm.jax.dot_general"
        )
    for i, j in zip(x[-3::-1], y[-3::-1]):
        if i != j and isinstance(i, int) and isinstance(j, int) and 1 not in (i, j):
            rule = f"batch dimensions must be equal or 1, found {i} and {j}"
            raise ValueError(f"{_found(a, b)}; {rule}. Insert one of size 1, as a[:, None] does")


def _instead(name: str) -> str:
    """What does as much as a number that cannot be passed."""
    return "Pass beta=1 and multiply c" if name == "beta" else "Leave it out and multiply the result"


def number(name: str, value: Any) -> float:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"hopgemm.jax.matmul: {name} is traced; it must be a Python number, since it is compiled into "
            f"the call. {_instead(name)}, or mark it static"
        )
    try:
        result: float = value.__float__()  # float() would also read text
    except (AttributeError, TypeError, ValueError):
        raise TypeError(
            f"hopgemm.jax.matmul: {name} is {_context.shown(value)}; must be a number. "
            f"Convert it with float(). {_instead(name)}"
        ) from None
    size = abs(result)
    if 0 < size < _FLOAT32_TINY or _FLOAT32_MAX < size != math.inf:
        raise ValueError(
            f"hopgemm.jax.matmul: {name} is {value}; must be 0 or between 1.5e-45 and 3.4e38 in size, as "
            f"float32 holds. {'Scale c' if name == 'beta' else 'Scale an operand, or the result'}"
        )
    return result


def _result_shape(a: Any, b: Any) -> tuple[Any, ...]:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))


def _check_extra(name: str, x: Any, dtype: Any) -> None:
    if not isinstance(x, jax.Array):
        raise TypeError(
            f"hopgemm.jax.matmul: {name} is {_context.shown(x)}; must be a jax.Array or None. "
            "Convert with jnp.asarray"
        )
    if x.dtype not in (dtype, F32):
        raise TypeError(
            f"hopgemm.jax.matmul: {name} is {x.dtype}; must be {dtype} (a's) or float32. Convert with .astype"
        )


def with_epilogue(
    a: Any, b: Any, bias: Any, c: Any, alpha: float, beta: float, out_dtype: Any
) -> tuple[Epilogue | None, tuple[Any, ...]]:
    """What is static about alpha, beta, c and bias, and the arrays; (None, ()) for the plain product."""
    if c is None and beta != 0:
        raise ValueError(
            f"hopgemm.jax.matmul: beta is {beta} and c is None; beta needs c. Pass c or leave beta 0"
        )
    shape, extras, c_dims = _result_shape(a, b), {}, ()
    if c is not None:
        _check_extra("c", c, a.dtype)
        lead = len(shape) - c.ndim
        if lead < 0 or any(x != 1 and x != y for x, y in zip(c.shape, shape[lead:])):
            raise ValueError(
                f"hopgemm.jax.matmul: c has shape {c.shape}; must broadcast to the result's {shape}. "
                "Reshape it, or transpose it with .mT"
            )
    if c is not None and beta != 0:  # beta == 0 never reads c
        ones = [i for i, (x, y) in enumerate(zip(c.shape, shape[lead:])) if x == 1 and y != 1]
        c_dims = tuple(lead + i for i in range(c.ndim) if i not in ones)
        extras["c"] = lax.squeeze(c, ones) if ones else c
    if bias is not None:
        _check_extra("bias", bias, a.dtype)
        if b.ndim < 2 or bias.shape != b.shape[-1:]:
            raise ValueError(
                f"hopgemm.jax.matmul: bias has shape {bias.shape} and b {b.shape}; bias must be (N,), "
                "one value for each column of b. Reshape it, or pass it as c with beta=1"
            )
        extras["bias"] = bias
    if not extras and alpha == 1:
        return None, ()
    return Epilogue(alpha, beta, tuple(extras), c_dims, out_dtype), tuple(extras.values())
