"""Matrix products for NVIDIA Hopper: one CUDA kernel behind PyTorch tensors and JAX arrays.

    import hopgemm
    d = hopgemm.matmul(a, b)        # two torch.Tensor, or two jax.Array; bfloat16 or float16

Importing this package loads neither CUDA nor a framework. Everything but `matmul` and the settings is loaded
on first use.
"""

from __future__ import annotations

from ._context import autotune, batch_invariant, fallback, sm_limit
from ._dispatch import matmul

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import jax as jax
    from . import torch as torch
    from ._cache import Tuned
    from ._device import device_info, sm_count, warmup
    from ._emulate import emulate
    from ._plan import Plan, plan
    from ._tune import tune

    __version__: str

__all__ = [
    "Plan",
    "Tuned",
    "__version__",
    "autotune",
    "batch_invariant",
    "device_info",
    "emulate",
    "fallback",
    "matmul",
    "plan",
    "sm_count",
    "sm_limit",
    "tune",
    "warmup",
]

_LAZY = {
    "Plan": "_plan",
    "plan": "_plan",
    "device_info": "_device",
    "sm_count": "_device",
    "warmup": "_device",
    "emulate": "_emulate",
    "Tuned": "_cache",
    "tune": "_tune",
}
_FRAMEWORKS = ("jax", "torch")


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _LAZY:
        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    elif name in _FRAMEWORKS:
        value = import_module(f"{__name__}.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version(__name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FRAMEWORKS})
