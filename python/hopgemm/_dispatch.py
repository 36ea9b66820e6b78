"""The one public product: it looks at the operands' types and hands over to hopgemm.torch or hopgemm.jax.

Nothing of the product itself belongs here, and no framework is imported that the caller has not imported.
"""

from __future__ import annotations

import sys

from . import _context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, overload

    import jax
    import torch
    from jax.typing import DTypeLike
else:  # typing costs 4 ms of import

    def overload(function):
        return function


# Exact types whose face is loaded: a dict lookup, because eager PyTorch pays it on every call. The rest takes
# isinstance.
_faces: dict[type, Callable[..., Any]] = {}


@overload
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
) -> torch.Tensor: ...
@overload
def matmul(  # noqa: F811
    a: jax.Array,
    b: jax.Array,
    /,
    *,
    bias: jax.Array | None = None,
    c: jax.Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out_dtype: DTypeLike | None = None,
    out_sharding: Any = None,
    batch_invariant: bool | None = None,
    fallback: bool | None = None,
    sm_limit: int | None = None,
    config: str | None = None,
) -> jax.Array: ...


def matmul(  # noqa: F811
    a: Any,
    b: Any,
    /,
    *,
    bias: Any = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    out_dtype: Any = None,
    out_sharding: Any = None,
    batch_invariant: bool | None = None,
    fallback: bool | None = None,
    sm_limit: int | None = None,
    config: str | None = None,
) -> Any:
    """alpha * a @ b + beta * c + bias, summed in fp32 and rounded once.

    Two torch.Tensor give a torch.Tensor, two jax.Array a jax.Array; tracers, fake tensors, parameters and
    subclasses included. Shapes follow torch.matmul and jnp.matmul: 1-D operands, broadcast batch dimensions.

    Args:
        a: (..., M, K) or (K,), bfloat16 or float16, any strides.
        b: (..., K, N) or (K,), of a's dtype and on a's device.
        bias: (N,), added to every row; a's dtype or float32.
        c: added `beta` times; broadcasts to the result; a's dtype or float32. Not read where beta is 0.
        alpha, beta: Python numbers.
        out: PyTorch only: where the result goes. JAX has no such thing: TypeError.
        out_dtype: a's dtype (default) or float32.
        out_sharding: JAX only: as in jnp.matmul, over Explicit mesh axes. In PyTorch TypeError.
        batch_invariant: a row's bits depend neither on M nor on its position, batch or neighbours.
        fallback: where the kernel cannot run, use the framework's product and warn once, instead of raising.
        sm_limit: at most so many SMs; 0: all.
        config: the name of a compiled kernel, as in hopgemm.plan(...).config; by default hopgemm chooses.

    None for batch_invariant, fallback and sm_limit means the enclosing `with` block's setting, else the
    environment's.

    Raises:
        TypeError: the operands are not two tensors of one framework and one supported dtype.
        ValueError: shapes that do not fit, or a value outside its rule.
        RuntimeError: the operands lie on a GPU where the kernel cannot run, and fallback is off.
    """
    face = _faces.get(type(a))
    if face is None or face is not _faces.get(type(b)):
        face = _find_face(a, b)
    if out_sharding is not None:
        face = _with_sharding(face, framework_of(a), out_sharding)
    return face(
        a,
        b,
        bias=bias,
        c=c,
        alpha=alpha,
        beta=beta,
        out=out,
        out_dtype=out_dtype,
        batch_invariant=batch_invariant,
        fallback=fallback,
        sm_limit=sm_limit,
        config=config,
    )


def _with_sharding(face: Callable[..., Any], framework: str | None, out_sharding: Any) -> Callable[..., Any]:
    if framework == "torch":
        raise TypeError(
            f"hopgemm.matmul: out_sharding is {_context.shown(out_sharding)} and a is a torch.Tensor; it is "
            "for JAX arrays alone. Leave it out: the placements of DTensors say how the result lies"
        )
    return lambda *args, **options: face(*args, out_sharding=out_sharding, **options)


def framework_of(x: object) -> str | None:
    """Whose tensor `x` is: "torch", "jax" or None."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return "jax"
    return None


def _find_face(a: Any, b: Any) -> Callable[..., Any]:
    framework = framework_of(a)
    if framework is None or framework != framework_of(b):
        raise TypeError(_refusal(a, b))
    if framework == "torch":
        from . import torch as torch_face

        torch = sys.modules["torch"]
        # Dynamo guards on the dict: filling it while tracing would compile everything twice.
        if not torch.compiler.is_compiling():
            for plain in (torch.Tensor, torch.nn.Parameter):
                _faces[plain] = torch_face.matmul
        return torch_face.matmul
    return _jax_matmul(a)


def _jax_matmul(a: Any) -> Callable[..., Any]:
    late = "hopgemm.jax" not in sys.modules and _context.is_inside_block()
    from . import jax as jax_face

    if late and isinstance(a, sys.modules["jax"].core.Tracer):
        raise RuntimeError(
            "hopgemm.matmul: jax was imported inside a hopgemm settings block, and this trace began there; "
            "hopgemm.jax puts the settings into jit's cache key when it is imported. Import jax before the"
            " block"
        )
    return jax_face.matmul


def _refusal(a: Any, b: Any) -> str:
    ways = {
        "numpy": "Convert NumPy arrays with torch.from_numpy or jax.numpy.asarray, then cast to bfloat16 or "
        "float16",
        "builtins": "Make a tensor of it with torch.tensor or jax.numpy.array, in bfloat16 or float16",
    }
    mixed = framework_of(a) is not None and framework_of(b) is not None
    strange = type(b if framework_of(a) else a)
    if mixed:
        way = "Convert one with torch.from_dlpack or jax.dlpack.from_dlpack"
    elif strange.__name__ == "ShapeDtypeStruct":
        way = "A shape has no values: see hopgemm.plan, or jax.eval_shape"
    else:
        way = ways.get(strange.__module__.partition(".")[0], "Convert it to a torch.Tensor or a jax.Array")
    found = f"a is {_describe(a)} and b is {_describe(b)}"
    return f"hopgemm.matmul: {found}; both must be torch.Tensor or both jax.Array. {way}"


def _describe(x: Any) -> str:
    """What stands in a message for an operand: its framework's name for the type, dtype and shape."""
    framework = framework_of(x)
    name = {"torch": "a torch.Tensor", "jax": "a jax.Array"}.get(framework or "")
    if name is None:
        module, kind = type(x).__module__, type(x).__qualname__
        name = f"of type {kind if module == 'builtins' else f'{module}.{kind}'}"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{name} ({str(x.dtype).removeprefix('torch.')} {tuple(x.shape)})"
    return name
