"""What JAX calls run on: the FFI target, the GPU that is planned for, and the plan of one custom call.

`hopgemm.jax.target` is read here, while a call is lowered. Nothing here knows of primitives or tracing.
"""

from __future__ import annotations

import functools
import importlib.metadata
import pathlib
import re
import sys
import warnings
from typing import Any, NamedTuple

import jax

from . import _core, _jax_labels, _tune_agreement

TARGET = "hopgemm.matmul.v1"
ALIGNMENT = 128  # of the buffers that XLA allocates
TMA_BYTES = 16  # alignment of strides that TMA asks for
_STEP = 64  # of K, which one CTA takes at a time


class Options(NamedTuple):
    """What a call asks for; travels through JAX as one hashable parameter."""

    config: str = ""  # the name of one kernel, or "": chosen while lowering
    sm_limit: int = 0
    batch_invariant: bool = False
    fallback: bool = False


def runtime_ffi_api() -> tuple[int, ...]:
    """(major, minor) of the XLA FFI of the jaxlib in use, from the header that jaxlib carries."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    version = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR)\s+(\d+)", header.read_text()))
    return int(version["MAJOR"]), int(version["MINOR"])


def register() -> None:
    """Register the handler for CUDA. ImportError where jaxlib's FFI is older than the one it was built with.

    HAZARD: jax takes a handler that is too new without a word and then fails to start any backend.
    """
    found = runtime_ffi_api()
    if found < tuple(_core.XLA_FFI_API):
        need = ".".join(map(str, _core.XLA_FFI_API))
        raise ImportError(
            f"hopgemm.jax: jaxlib {importlib.metadata.version('jaxlib')} has XLA FFI API "
            f"{found[0]}.{found[1]}; this build needs {need} or later. "
            "Update with: pip install 'jax>=0.9.1'"
        )
    for name, handler in _core.xla_handlers().items():
        jax.ffi.register_ffi_target(name, handler, platform="CUDA")


# ---- the GPU that is planned for -------------------------------------------------------------------------


@functools.cache
def _visible_gpu() -> int | None:
    """The CUDA ordinal of jax's first GPU in this process, or None."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:  # no CUDA plug-in, no GPU, or JAX_PLATFORMS without cuda
        return None
    return devices[0].local_hardware_id if devices else None


def _target() -> int | dict[str, Any] | None:
    target = sys.modules["hopgemm.jax"].target
    if target is None:
        return _visible_gpu()
    if target == "H200":
        return None
    if isinstance(target, (dict, int)) and not isinstance(target, bool):
        return target
    raise ValueError(
        f"hopgemm.jax: target is {target!r}; must be None (the visible GPU, else an H200), 'H200', "
        "a CUDA device ordinal, or a dict of facts such as {'sm_count': 114}. Set hopgemm.jax.target to None"
    )


def refusal() -> str | None:
    """Why the kernel cannot run on the target (what was found, what is needed, the way out), or None."""
    target = _target()
    if not isinstance(target, int):
        return None
    try:
        info = _core.device_info(target)
    except RuntimeError as error:  # no driver, or one under 580: the core names both, and the way out
        return str(error)
    capability = tuple(info["compute_capability"])
    way_out = "Pass fallback=True or set HOPGEMM_FALLBACK=1 to use XLA's product"
    if capability != (9, 0):
        found = ".".join(map(str, capability))
        return (
            f"hopgemm.jax: {info['name']} has compute capability {found}; the kernel needs 9.0 "
            f"(Hopper: H100, H200). {way_out}"
        )
    return None


@functools.cache
def warn_fallback(reason: str) -> None:
    """Say once for each reason that XLA's product stands in."""
    warnings.warn(f"{reason}. Using XLA's product instead", RuntimeWarning, stacklevel=2)


# ---- one custom call -------------------------------------------------------------------------------------


def plan(
    spec: str, epilogue: str, avals: Any, out: Any, options: Options, alpha: float, beta: float
) -> tuple[str, Any]:
    """The config's name and the bytes of workspace for one custom call on row-major operands.

    `avals` are (lhs, rhs, *extras). With symbolic dimensions the name is "auto", chosen at launch, and the
    bytes are a symbolic expression that is enough for whatever is chosen. ValueError where the core refuses
    the product.
    """
    if not all(isinstance(x, int) for a in (*avals, out) for x in a.shape):
        p = _jax_labels.problem(spec, epilogue, avals[0].shape, avals[1].shape, out.shape)
        return options.config or "auto", _workspace_bound(p, avals[0].dtype.itemsize, options)
    chosen = describe(spec, epilogue, avals, out, options, alpha, beta, lowering=True)
    return chosen["config"] or "auto", chosen["workspace_bytes"]


def describe(
    spec: str,
    epilogue: str,
    avals: Any,
    out: Any,
    options: Options,
    alpha: float,
    beta: float,
    lowering: bool = False,
) -> dict[str, Any]:
    """What _core.plan says of one custom call on row-major operands of known sizes.

    HAZARD: `lowering` may wait until the other JAX processes lower a product too, see _tune_agreement.
    """
    p = _jax_labels.problem(spec, epilogue, avals[0].shape, avals[1].shape, out.shape)
    target, extras = _target(), _jax_labels.extras_of(epilogue)
    where = {"facts": target} if isinstance(target, dict) else {"device": target}
    return _core.plan(
        avals[0].dtype.name,
        out.dtype.name,
        p.m,
        p.n,
        p.k,
        p.batch,
        p.a_strides,
        p.b_strides,
        p.d_strides,
        alignment=(ALIGNMENT,) * 3,
        alpha=alpha,
        beta=beta,
        c="c" in extras,
        bias="bias" in extras,
        config=options.config,
        sm_limit=options.sm_limit,
        batch_invariant=options.batch_invariant,
        tuned=_tune_agreement.holds(lowering),
        **where,
    )


def _workspace_bound(p: _jax_labels.Problem, itemsize: int, options: Options) -> Any:
    """Bytes of workspace that suffice for any plan of a product whose sizes are not all known.

    For each operand that TMA may be unable to read in place: a K-major copy with padded rows. Then the most
    that the sums of a tail take, where there may be one.
    HAZARD: has to follow `workspace_bytes` of src/host/plan.cc; the handler refuses a workspace that is too
    small.
    """
    has_one_step = isinstance(p.k, int) and p.k <= _STEP
    no_tail = has_one_step or options.batch_invariant or (options.config and "+tail" not in options.config)
    bound: Any = 0 if no_tail else _core.max_sums_bytes
    for strides, rows in ((p.a_strides, p.m), (p.b_strides, p.n)):
        steps = [s * itemsize % TMA_BYTES for s in strides if not (isinstance(s, int) and s == 1)]
        if not all(isinstance(x, int) and x == 0 for x in steps):
            copy = functools.reduce(
                lambda x, y: x * y, p.batch, rows * (p.k + TMA_BYTES // itemsize) * itemsize
            )
            bound = bound + copy + 256
    return bound
