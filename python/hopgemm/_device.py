"""What hopgemm knows of a GPU, and loading its kernels ahead of the first call."""

from __future__ import annotations

import operator
from typing import Any

from . import _core


def device_index(device: Any) -> int:
    """The CUDA ordinal that `device` names.

    An int, "1", "cuda", "cuda:1", a torch.device or a jax.Device; a bare "cuda" is GPU 0. TypeError for
    anything else, ValueError for a device that is not a CUDA GPU.
    """
    if hasattr(device, "local_hardware_id") and hasattr(device, "platform"):  # jax.Device
        if device.platform not in ("gpu", "cuda"):
            raise ValueError(f"hopgemm: device is {device}; must be a CUDA GPU")
        return int(device.local_hardware_id)
    if hasattr(type(device), "__index__") and not isinstance(device, bool):
        index = operator.index(device)
    elif isinstance(device, str) or (hasattr(device, "type") and hasattr(device, "index")):  # torch.device
        number = str(device).removeprefix("cuda").removeprefix(":") or "0"
        if not number.isdecimal():
            raise ValueError(
                f'hopgemm: device is "{device}"; must be a CUDA GPU, such as "cuda:1", or its number'
            )
        index = int(number)
    else:
        kind = type(device).__name__
        raise TypeError(f'hopgemm: device is {device!r} ({kind}); must be a number, or such as "cuda:1"')
    if index < 0:
        raise ValueError(f"hopgemm: device is {index}; must be 0 or more")
    return index


def device_info(device: Any = 0) -> dict[str, Any]:
    """Facts of a visible GPU: `name`, `compute_capability` as (major, minor), `sm_count`, `max_smem_bytes`,
    `l2_bytes`, `dram_bytes_per_cycle` (of its highest clock), `memory_bytes`, `driver_version` (13000 is
    CUDA 13.0).

    RuntimeError where there is no driver or no such GPU.
    """
    return _core.device_info(device_index(device))


def sm_count(device: Any = 0) -> int:
    """The number of SMs of a visible GPU. RuntimeError where there is no driver or no such GPU."""
    return int(device_info(device)["sm_count"])


def warmup(device: Any = 0) -> None:
    """Loads every kernel onto the GPU, so that no later call has to. RuntimeError where that cannot be."""
    _core.warmup(device_index(device))
