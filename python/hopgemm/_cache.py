"""The file of tuned configs: where it lies, what may stand in it, and how it reaches the calls.

Whatever the file holds is harmless: an entry counts only if every field has its type and `_core.plan` takes
its config for its product, and the C++ table asks again at each use. Written whole, under a lock, and never
over a file that is not one of tuned configs.

How entries are found: `_tune`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import re
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from . import _core

VARIABLE = "HOPGEMM_CACHE"
_SCHEMA = 1
_FILE = f"hopgemm/tuned-v{_SCHEMA}.json"
_MAX_BYTES = 4 << 20
_MAX_ENTRIES = _MAX_BYTES // 1024  # so many always fit: an entry's line is shorter, whatever it holds
_MAX_ELEMENTS = 2**48  # of an operand, all batches: more than memory holds, and strides still fit 64 bits
_LOCK_WAIT_S = 10.0
_CONFIG = re.compile(r"[a-z0-9_+]{1,127}")
_DTYPES = ("bfloat16", "float16")
_OWN_HEAD = re.compile(rb'\s*(\{\s*"schema"\s*:\s*\d|\Z)')  # an empty file is anybody's


class Key(NamedTuple):
    """What the speed of a config depends on: a product as the kernel sees it, as `_core.tuning_key` tells it.

    majors: after packing; m: with the batch dimensions that fold into it; batch_*: what is left of them;
    sm_count: the SMs that may be used.
    """

    dtype: str
    out_dtype: str
    majors: str
    m: int
    n: int
    k: int
    batch_inner: int
    batch_outer: int
    sm_count: int
    batch_invariant: bool

    def __str__(self) -> str:
        batch = self.batch_inner * self.batch_outer
        parts = [f"{self.m}x{self.n}x{self.k}", self.majors, self.dtype]
        parts += [f"to {self.out_dtype}"] * (self.out_dtype != self.dtype)
        parts += [f"batch {batch}"] * (batch > 1) + [f"{self.sm_count} SMs"]
        return " ".join(parts + ["batch invariant"] * self.batch_invariant)


@dataclass(frozen=True)
class Tuned:
    """The fastest config found for one product on one kind of GPU, beside what hopgemm takes untuned.

    gpu: its name; driver: its CUDA version, 13000 is 13.0; hopgemm: the version that measured;
    microseconds, default_microseconds: of one product.
    """

    gpu: str
    driver: int
    hopgemm: str
    key: Key
    config: str
    microseconds: float
    default_config: str
    default_microseconds: float

    def as_json(self) -> dict[str, Any]:
        """Plain data, the key's fields beside the rest."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "key"}
        return {**fields, **self.key._asdict()}


# ---- where ----


def location() -> Path | None:
    """The file; None where HOPGEMM_CACHE is "off", or there is no home (with a warning if it names one)."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() == "off":
        return None
    if named:
        path = os.path.expanduser(named)
        if not path.startswith("~"):
            return Path(path)
        warnings.warn(
            f"hopgemm: {VARIABLE} is {named!r}, and there is no such home: tuned configs are neither read "
            "nor kept. Name a file by its whole path",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # the XDG rule: a relative path counts as unset
        folder = os.path.expanduser("~/.cache")
    return Path(folder, _FILE) if os.path.isabs(folder) else None


def is_named() -> bool:
    """Does HOPGEMM_CACHE name a file?"""
    return os.environ.get(VARIABLE, "").strip().lower() not in ("", "off")


def version() -> str:
    """Of hopgemm; entries of another version do not count: it may have other kernels."""
    from importlib import metadata

    try:
        return metadata.version("hopgemm")
    except metadata.PackageNotFoundError:  # a source tree on the path
        return ""


# ---- what ----


def read(path: Path) -> tuple[list[Tuned], list[str]]:
    """The file's entries, and what is wrong with the rest; nothing of both where there is no file.

    Fields are checked, not yet what they mean: see `problem_of`.
    """
    try:
        text = _bytes_of(path)
        if text is not None and len(text) > _MAX_BYTES:
            raise ValueError(f"larger than {_MAX_BYTES} bytes")
        data = {"schema": _SCHEMA, "entries": []} if text is None else json.loads(text.decode())
    except (OSError, ValueError, RecursionError) as error:
        return [], [f"{path}: {error or type(error).__name__}"]
    raw = data.get("entries") if isinstance(data, dict) and data.get("schema") == _SCHEMA else None
    if not isinstance(raw, list):
        return [], [f"{path}: not a file of tuned configs of schema {_SCHEMA}"]
    entries, problems = [], []
    first = max(0, len(raw) - _MAX_ENTRIES)
    if first:
        problems.append(f"{path}: {len(raw)} entries; the last {_MAX_ENTRIES} count")
    for i, fields in enumerate(raw[first:], first):
        try:
            entries.append(_entry(fields))
        except (TypeError, ValueError) as error:
            problems.append(f"{path}: entry {i}: {error}")
    return entries, problems


def problem_of(entry: Tuned) -> str | None:
    """Why the entry cannot be used by this version, or None. Asks `_core.plan`."""
    if entry.config.partition("+")[0] not in _core.configs():
        return f"config {entry.config!r} is not a kernel of this version"
    product, where = arguments(entry.key, entry.gpu)
    try:
        if _core.tuning_key(*product, **where) != entry.key:
            return f"no product has the key {entry.key}"
        _core.plan(*product, **where, config=entry.config)
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:  # also what C++ cannot hold
        return str(error)
    return None


def arguments(key: Key, gpu: str) -> tuple[list[Any], dict[str, Any]]:
    """How `_core.plan` wants the product of a key described: the plainest operands that have it."""
    batch = [key.batch_outer, key.batch_inner]
    a = _strides(key.m, key.k, key.majors[0] == "k", key.batch_inner)
    b = _strides(key.k, key.n, key.majors[1] == "n", key.batch_inner)
    d = _strides(key.m, key.n, True, key.batch_inner)
    product = [key.dtype, key.out_dtype, key.m, key.n, key.k, batch, a, b, d]
    facts = {**_facts_of(gpu), "name": gpu, "sm_count": key.sm_count}
    return product, {"facts": facts, "batch_invariant": key.batch_invariant}


@functools.cache
def _facts_of(gpu: str) -> dict[str, Any]:
    """Of a visible GPU of that name; nothing of one that is not here: it then counts as an H200."""
    for index in range(_core.device_count()):
        with contextlib.suppress(RuntimeError):
            info = _core.device_info(index)
            if info["name"] == gpu:
                return info
    return {}


def leading(size: int) -> int:
    """Elements from one row of `size` to the next where TMA reads them in place: a multiple of 16 bytes."""
    return -(-size // 8) * 8


def _strides(rows: int, cols: int, row_major: bool, batch_inner: int) -> list[int]:
    pitch = leading(cols if row_major else rows)
    matrix = pitch * (rows if row_major else cols)
    return [batch_inner * matrix, matrix, *((pitch, 1) if row_major else (1, pitch))]


def _bytes_of(path: Path) -> bytes | None:
    """At most one more than are taken; None where there is no file, OSError where it is no regular one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # nobody may be at a pipe's other end
    except FileNotFoundError:
        return None
    with open(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a regular file")
        return stream.read(_MAX_BYTES + 1)


def _entry(fields: Any) -> Tuned:
    """ValueError or TypeError unless each field is there and in range."""
    if not isinstance(fields, dict):
        raise TypeError("not an object")

    def take(name: str, kind: type, good: Any) -> Any:
        value = fields.get(name)
        if type(value) is not kind or not good(value):
            raise ValueError(f"{name} is {value!r:.80}")
        return value

    def size(name: str) -> int:
        return take(name, int, lambda x: 0 < x < 2**31)  # type: ignore[no-any-return]

    def config(name: str) -> str:
        return take(name, str, _CONFIG.fullmatch)  # type: ignore[no-any-return]

    def name_of(name: str, shortest: int) -> str:
        good = lambda x: shortest <= len(x) < 64 and x.isascii() and x.isprintable()
        return take(name, str, good)  # type: ignore[no-any-return]

    def duration(name: str) -> float:
        return take(name, float, lambda x: math.isfinite(x) and x > 0)  # type: ignore[no-any-return]

    dtype = take("dtype", str, _DTYPES.__contains__)
    key = Key(
        dtype,
        take("out_dtype", str, (dtype, "float32").__contains__),
        take("majors", str, ("kk", "kn", "mk", "mn").__contains__),
        size("m"),
        size("n"),
        size("k"),
        size("batch_inner"),
        size("batch_outer"),
        size("sm_count"),
        take("batch_invariant", bool, lambda _: True),
    )
    largest = max(key.m * key.n, key.m * key.k, key.n * key.k)
    if key.batch_inner * key.batch_outer * largest > _MAX_ELEMENTS:
        raise ValueError(f"{key} is too large")
    return Tuned(
        name_of("gpu", 1),
        take("driver", int, lambda x: 0 <= x < 2**31),
        name_of("hopgemm", 0),
        key,
        config("config"),
        duration("microseconds"),
        config("default_config"),
        duration("default_microseconds"),
    )


# ---- in force ----

_lock = threading.RLock()
_in_force: dict[tuple[str, Key], Tuned] = {}
_installed = False
_frozen = False


def install() -> None:
    """Once a process: what the file has for this driver and version answers before the selector, from now
    on. Warns where the file is broken."""
    global _installed
    if _installed:
        return
    with _lock:
        path, _installed = location(), True
        if path is None:
            return
        entries, problems = read(path)
        if problems:
            more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
            warnings.warn(
                f"hopgemm: ignored in the cache of tuned configs: {problems[0]}{more}. "
                "`hopgemm cache check` tells all, `hopgemm cache clear` removes the file",
                RuntimeWarning,
                stacklevel=2,
            )
        if entries:
            adopt(entries)


def adopt(entries: Iterable[Tuned]) -> None:
    """Lets valid entries of this driver and version answer before the selector, in this process. Warns
    instead after freeze()."""
    current = _core.driver_version(), version()
    good = [e for e in entries if (e.driver, e.hopgemm) == current and problem_of(e) is None]
    with _lock:
        if _frozen:
            warnings.warn(
                "hopgemm: the JAX processes have compared their tuned configs: what is tuned after that does "
                "not count in this process",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        _in_force.update({(e.gpu, e.key): e for e in good})
        _core.set_tuned([(gpu, tuple(key), e.config) for (gpu, key), e in _in_force.items()])


def in_force() -> list[Tuned]:
    """The entries that answer in this process."""
    with _lock:
        return list(_in_force.values())


def freeze() -> list[Tuned]:
    """The entries that answer in this process, which from now on stay as they are: other processes rely on
    them."""
    global _frozen
    with _lock:
        _frozen = True
        return in_force()


def is_known(gpu: str, key: Key) -> bool:
    """Is there an entry in force for that product?"""
    return (gpu, key) in _in_force


# ---- writing ----


def store(entries: Iterable[Tuned]) -> None:
    """Adds entries to the file, in place of older ones of the same product, GPU, driver and version; where
    they become too many, the oldest go.

    OSError where it cannot be written, or is not ours. Other processes' entries stay, also those that come
    at this moment.
    """
    path = location()
    if path is None:
        return
    _refuse_foreign(path)  # before a lock's file is made beside it
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        old, _ = read(path)
        merged: dict[tuple[Any, ...], Tuned] = {}
        for e in (*old, *entries):
            identity = (e.gpu, e.driver, e.hopgemm, e.key)
            merged.pop(identity, None)  # the newest are last
            merged[identity] = e
        lines = [json.dumps(e.as_json()) for e in merged.values()][-_MAX_ENTRIES:]
        _replace(path, f'{{"schema": {_SCHEMA}, "entries": [\n' + ",\n".join(lines) + "\n]}\n")


def remove(path: Path) -> None:
    """Removes the file, if it is there. OSError where it is not ours, or stays."""
    _refuse_foreign(path)
    path.unlink(missing_ok=True)


def _refuse_foreign(path: Path) -> None:
    """OSError where there is a file without a schema of ours: it is somebody's. A damaged one of ours is told
    by how it begins."""
    data = _bytes_of(path)
    if data is None or _OWN_HEAD.match(data):
        return
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(data)
        if isinstance(found, dict) and type(found.get("schema")) is int:
            return
    raise OSError(f"{path} is not a file of tuned configs, and is left alone")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock beside the file; OSError (TimeoutError) where another process keeps it."""
    with open(path.with_name(path.name + ".lock"), "ab") as lock:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{lock.name}: another process holds it") from None
                time.sleep(0.01)
        yield  # closing the file lets go


def _replace(path: Path, text: str) -> None:
    number, part = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    try:
        with open(number, "w") as stream:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(number, stat.S_IMODE(path.stat().st_mode))
            stream.write(text)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
