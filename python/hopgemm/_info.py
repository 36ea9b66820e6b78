"""`hopgemm info`: what there is on this machine. Needs neither driver nor frameworks, and imports none."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any

from . import _cache, _context

_PACKAGES = ("torch", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy", "nanobind-backend")

# Run in a fresh interpreter: this one has loaded everything already.
_LOADING = """
import os, time
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
t0, r0 = time.perf_counter(), resident()
import hopgemm
t1, r1 = time.perf_counter(), resident()
import hopgemm._core
t2, r2 = time.perf_counter(), resident()
print(t1 - t0, t2 - t1, r1 - r0, r2 - r1)
"""


def collect() -> dict[str, Any]:
    """Everything that `hopgemm info` prints, as plain data for JSON."""
    from . import _core

    devices: list[dict[str, Any]] = []
    for index in range(_core.device_count()):
        try:
            devices.append(_core.device_info(index))
        except RuntimeError as error:
            devices.append({"error": str(error)})
    return {
        "hopgemm": _version("hopgemm"),
        "commit": _core.commit,
        "compiler": _core.compiler,
        "kernels": len(_core.configs()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "driver_version": _core.driver_version(),
        "runtime_version": _core.runtime_version(),
        "devices": devices,
        "packages": {name: _version(name) for name in _PACKAGES},
        "xla_ffi": {"hopgemm": list(_core.XLA_FFI_API), "jaxlib": _jaxlib_ffi()},
        "cache": _cached(),
        "environment": _environment(),
        "loading": _loading(),
    }


def render(info: dict[str, Any]) -> str:
    """The same for people."""
    lines = [
        (
            "hopgemm",
            f"{info['hopgemm'] or 'not installed'}, commit {info['commit']}, {info['kernels']} kernels",
        ),
        ("compiler", info["compiler"]),
        ("python", f"{info['python']}, {info['platform']}"),
        ("driver", f"CUDA {_cuda(info['driver_version'])}" if info["driver_version"] else "none"),
        ("runtime", f"CUDA {_cuda(info['runtime_version'])}, inside libhopgemm.so"),
    ]
    lines += [(f"GPU {i}", _gpu_text(device)) for i, device in enumerate(info["devices"])] or [
        ("GPU", "none")
    ]
    lines += [(name, version or "not found") for name, version in info["packages"].items()]
    ours, theirs = info["xla_ffi"]["hopgemm"], info["xla_ffi"]["jaxlib"]
    theirs_text = ".".join(map(str, theirs)) if theirs else "not found"
    lines.append(("XLA FFI", f"hopgemm {'.'.join(map(str, ours))}, jaxlib {theirs_text}"))
    cache = info["cache"]
    problems = f", {cache['problems']} problems: see hopgemm cache check" if cache["problems"] else ""
    lines.append(
        ("cache", f"{cache['path']}, {cache['entries']} tuned{problems}" if cache["path"] else "off")
    )
    for name, entry in info["environment"].items():
        value = "not set" if entry["value"] is None else entry["value"]
        lines.append((name, value + (f"   <- {entry['problem']}" if entry["problem"] else "")))
    loading = info["loading"]
    if loading:
        package, core = loading["hopgemm"], loading["hopgemm._core"]
        lines.append(("import", f"hopgemm {package['ms']:.1f} ms, {package['bytes'] / 1e6:.1f} MB"))
        lines.append(("load", f"hopgemm._core {core['ms']:.1f} ms, {core['bytes'] / 1e6:.1f} MB"))
    return "\n".join(f"{name:<24}{value}" for name, value in lines)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _gpu_text(device: dict[str, Any]) -> str:
    if "error" in device:
        return f"not usable: {device['error']}"
    capability = ".".join(map(str, device["compute_capability"]))
    supported = "" if capability == "9.0" else " (not supported: hopgemm needs 9.0)"
    return (
        f"{device['name']}, compute capability {capability}{supported}, {device['sm_count']} SMs, "
        f"{device['memory_bytes'] / 2**30:.0f} GiB, L2 {device['l2_bytes'] / 2**20:.0f} MiB"
    )


def _jaxlib_ffi() -> list[int] | None:
    """jaxlib's XLA FFI version, read from its header."""
    spec = util.find_spec("jaxlib")
    for folder in (spec and spec.submodule_search_locations) or ():
        header = Path(folder, "include/xla/ffi/api/c_api.h")
        if header.is_file():
            found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
            if len(found) == 2:
                return [int(found["MAJOR"]), int(found["MINOR"])]
    return None


def _cached() -> dict[str, Any]:
    """The file of tuned configs; `path` is None where there is none."""
    path = _cache.location()
    entries, problems = _cache.read(path) if path else ([], [])
    return {"path": path and str(path), "entries": len(entries), "problems": len(problems)}


def _environment() -> dict[str, dict[str, str | None]]:
    """The variables hopgemm reads, and those that only look as if it did."""
    entries: dict[str, dict[str, str | None]] = {}
    for field, name in _context.ENVIRONMENT.items():
        try:
            _context.parse_environment(field)
            problem = None
        except ValueError as error:
            problem = str(error)
        entries[name] = {"value": os.environ.get(name), "problem": problem}
    entries[_cache.VARIABLE] = {"value": os.environ.get(_cache.VARIABLE), "problem": None}
    for name in sorted(os.environ):
        if name.startswith("HOPGEMM_") and name not in entries:
            entries[name] = {"value": os.environ[name], "problem": "not a variable that hopgemm reads"}
    entries["CUDA_VISIBLE_DEVICES"] = {"value": os.environ.get("CUDA_VISIBLE_DEVICES"), "problem": None}
    return entries


def _loading() -> dict[str, dict[str, float]] | None:
    """Time and resident memory of importing, from a fresh interpreter; None where there is no /proc."""
    run = subprocess.run([sys.executable, "-c", _LOADING], capture_output=True, text=True)
    if run.returncode:
        return None
    package_s, core_s, package_bytes, core_bytes = map(float, run.stdout.split())
    return {
        "hopgemm": {"ms": package_s * 1e3, "bytes": package_bytes},
        "hopgemm._core": {"ms": core_s * 1e3, "bytes": core_bytes},
    }
