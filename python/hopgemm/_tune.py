"""`hopgemm.tune`: the fastest config for a product on the user's own GPU, and `autotune` at first use.

How it is found is `_tune_race`; what a framework has to do for that, `_tune_torch` and `_tune_jax`; the file
of winners, `_cache`.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _cache, _context, _core
from ._cache import Key, Tuned
from ._plan import dtype_name, sizes
from ._progress import Bar
from ._shapes import Shape, format_shape, parse_shape
from ._tune_race import FIRST_USE, THOROUGH, Bench, Effort, Race, Report

OpenBench = Callable[[Key], Bench]


def tune(
    shapes: Iterable[Shape | str],
    *,
    dtype: Any = "bfloat16",
    majors: str | Sequence[str] = "kk",
    out_dtype: Any = None,
    batch: int = 1,
    batch_invariant: bool | None = None,
    sm_limit: int | None = None,
    framework: str = "auto",
    save: bool = True,
    progress: Report | None = None,
) -> list[Tuned]:
    """Finds the fastest config for each product on this machine's Hopper GPU, and uses it from now on.

    The winners are kept in the user's cache, for this GPU, driver and version of hopgemm: later processes
    take them too, in PyTorch and in JAX, compiled programs and gradients included. 1 to 30 s a product.

    Args:
        shapes: (M, N, K), or text such as "4096x4096x4096". Leading dimensions of A that share B count as
            rows: (8, 512, K) @ (K, N) has M = 4096.
        dtype: of the operands: bfloat16 or float16, or several.
        majors: the contiguous dimensions of A and of B: "kk" is `x @ w.T`, "kn" `a @ b`, "mk" and "mn"; or
            several.
        out_dtype: the operands' dtype (None) or float32.
        batch: products in one call, each with operands of its own.
        batch_invariant, sm_limit: as in `matmul`; None: the enclosing block's setting.
        framework: through which to run: "torch", "jax", or "auto": torch where it is installed.
        save: False leaves the cache's file alone; the winners hold for this process.
        progress: called with the part that is done, 0 to 1, and what is being done; None: a bar on standard
            error, where that is a terminal.

    Returns:
        One `Tuned` for each product, in the order of dtypes, majors and shapes.

    Raises:
        ValueError: a shape, dtype or option outside its rule.
        RuntimeError: no framework, no Hopper GPU, not enough of its memory, or inside a capture of a CUDA
            graph.
    """
    wanted = [parse_shape(shape) if isinstance(shape, str) else _checked(shape) for shape in shapes]
    dtypes = [dtype_name(x) for x in (dtype if isinstance(dtype, (list, tuple)) else [dtype])]
    layouts = [majors] if isinstance(majors, str) else list(majors)
    for name, values, good in (
        ("dtype", dtypes, ("bfloat16", "float16")),
        ("majors", layouts, ("kk", "kn", "mk", "mn")),
        ("framework", [framework], ("auto", "torch", "jax")),
    ):
        for value in values:
            if value not in good:
                raise ValueError(f"hopgemm.tune: {name} is {value!r}; must be one of {', '.join(good)}")
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(f"hopgemm.tune: batch is {batch!r}; must be 1 or more")
    settings = _context.current()
    limit = _context.check_sm_limit("tune", sm_limit, settings.sm_limit)
    invariant = _context.check_flag("tune", "batch_invariant", batch_invariant, settings.batch_invariant)
    module = _framework(framework)
    device = module.current_device()
    gpu = _hopper(device)
    _cache.install()
    where = {"facts": {"name": gpu["name"], "sm_count": gpu["sm_count"]}, "sm_limit": limit}
    where["batch_invariant"] = invariant
    # All of them before anything is measured.
    keys = [
        key_of(size, name, layout, batch, _out_name(out_dtype, name), where)
        for name, layout, size in itertools.product(dtypes, layouts, wanted)
    ]
    found: list[Tuned] = []
    with Bar() as bar:
        told = progress or bar.update
        for key in keys:

            def report(done: float, text: str, key: Key = key) -> None:
                told((len(found) + done) / len(keys), f"{key}: {text}")

            found.append(search(key, gpu["name"], module.open_bench, report, THOROUGH))
            keep(found[-1:], save)
    return found


def search(key: Key, gpu: str, open_bench: OpenBench, report: Report, effort: Effort) -> Tuned:
    """The fastest exact config of one product.

    RuntimeError where there is no exact one, or as `open_bench` does.
    """
    report(0.0, "making operands")
    return Race(gpu, open_bench(key), effort).winner(key, report)


def keep(found: list[Tuned], save: bool = True) -> None:
    """Lets winners answer in this process and, unless `save` is off, in later ones; warns where it cannot."""
    _cache.adopt(found)
    if not save:
        return
    try:
        _cache.store(found)
    except OSError as error:
        warnings.warn(
            f"hopgemm: the cache of tuned configs cannot be written ({error}): what was found holds for this "
            f"process. Name a file with {_cache.VARIABLE}",
            RuntimeWarning,
            stacklevel=3,
        )


# ---- at first use ----

_tuning = threading.Lock()
_tried: set[tuple[str, Key]] = set()


def at_first_use(product: list[Any], options: dict[str, Any], open_bench: OpenBench) -> None:
    """Tunes the product that `_core.tuning_key(*product, **options)` names, unless there is an entry for it.

    Never raises: what cannot be tuned runs as hopgemm chooses, with a warning.
    """
    try:
        with _tuning:
            fields = _core.tuning_key(*product, **options)
            if fields is None:  # nothing to compute
                return
            key, gpu = Key(*fields), _core.device_info(options["device"])["name"]
            if (gpu, key) in _tried or _cache.is_known(gpu, key):
                return
            _tried.add((gpu, key))
            keep([search(key, gpu, open_bench, lambda done, text: None, FIRST_USE)])
    except Exception as error:  # whatever it is, the product itself can run
        size = "x".join(map(str, product[2:5]))
        warnings.warn(f"{error}: hopgemm's own choice runs {size}", RuntimeWarning, stacklevel=4)


# ---- parts ----


def _checked(shape: Any) -> Shape:
    """ValueError unless this is three positive integers."""
    sizes = tuple(shape)
    if len(sizes) != 3 or not all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in sizes):
        raise ValueError(f"hopgemm.tune: shape {shape!r}; must be (M, N, K), three positive integers")
    return sizes


def _out_name(out_dtype: Any, dtype: str) -> str:
    name = dtype if out_dtype is None else dtype_name(out_dtype)
    if name not in (dtype, "float32"):
        raise ValueError(f"hopgemm.tune: out_dtype is {name}; must be {dtype} or float32")
    return name


def key_of(shape: Shape, dtype: str, majors: str, batch: int, out_dtype: str, where: dict[str, Any]) -> Key:
    """Of the product of operands as they are made; ValueError where no kernel runs it."""
    product, _ = sizes(*shape, dtype, majors, (batch,) if batch > 1 else (), out_dtype)
    try:
        _core.plan(*product, **where)
    except ValueError as error:
        raise ValueError(f"hopgemm.tune: {format_shape(shape)}, {majors}: {error}") from None
    fields = _core.tuning_key(*product, **where)
    assert fields is not None  # the plan was made, and no size is 0
    return Key(*fields)


def _hopper(device: int) -> dict[str, Any]:
    gpu = _core.device_info(device)
    if tuple(gpu["compute_capability"]) != (9, 0):
        found = ".".join(map(str, gpu["compute_capability"]))
        raise RuntimeError(f"hopgemm.tune: {gpu['name']} is of compute capability {found}; 9.0 is needed")
    return gpu


def _framework(name: str) -> Any:
    """`_tune_torch` or `_tune_jax`. RuntimeError where there is no such framework."""
    names = ("torch", "jax") if name == "auto" else (name,)
    for candidate in names:
        if importlib.util.find_spec(candidate) is not None:
            return importlib.import_module(f"{__package__}._tune_{candidate}")
    raise RuntimeError(f"hopgemm.tune: {' or '.join(names)} is not installed; it holds the operands")
