"""What tuning needs of JAX: operands, an exact reference, compiled programs; and the hook of eager calls."""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import _core, _jax_labels, _tune
from . import jax as hopgemm_jax
from ._bench_case import rotation_sets
from ._cache import Key
from ._device import device_info

_MAX_SETS = 32  # XLA compiles each


def current_device() -> int:
    """JAX's first GPU. RuntimeError where it sees none."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        raise RuntimeError("hopgemm.tune: JAX sees no GPU; one of compute capability 9.0 is needed") from None
    return int(device.local_hardware_id)


class Bench:
    """See `_tune.Bench`. Operands are JAX arrays, row-major and not padded."""

    def __init__(self, key: Key) -> None:
        self._key, info = key, device_info(current_device())
        self._options: dict[str, Any] = {
            "sm_limit": key.sm_count if key.sm_count < info["sm_count"] else 0,
            "batch_invariant": key.batch_invariant,
        }
        batch = key.batch_inner * key.batch_outer
        self._batch = (batch,) if batch > 1 else ()
        count = rotation_sets((batch * key.m, batch * key.n, key.k), info["l2_bytes"], _MAX_SETS)
        if key.batch_outer > 1 or self._key_of_operands() != key:
            raise RuntimeError(f"hopgemm.tune: JAX cannot lay out operands for {key}")
        random = jax.random.split(jax.random.key(0), 2 * count + 2)
        sizes = self._sizes()
        normal = [jax.random.normal(r, sizes[i % 2], key.dtype) for i, r in enumerate(random[2:])]
        self._sets = list(zip(normal[::2], normal[1::2], strict=True))
        self._integers = [
            jax.random.randint(r, size, -2, 3).astype(key.dtype)
            for r, size in zip(random[:2], sizes, strict=True)
        ]
        try:
            self._reference = jax.jit(self._by_xla)(*self._integers).block_until_ready()
        except jax.errors.JaxRuntimeError as error:  # out of memory
            raise RuntimeError(f"hopgemm.tune: {key}: {error}") from None

    def _sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the operands as they are stored."""
        key = self._key
        a = (key.m, key.k) if key.majors[0] == "k" else (key.k, key.m)
        b = (key.k, key.n) if key.majors[1] == "n" else (key.n, key.k)
        return (*self._batch, *a), (*self._batch, *b)

    def _key_of_operands(self) -> Any:
        key = self._key
        strides = []
        for size, plain in zip(self._sizes(), (key.majors[0] == "k", key.majors[1] == "n"), strict=True):
            *_, rows, cols = size
            strides.append([rows * cols] * len(self._batch) + ([cols, 1] if plain else [1, cols]))
        out = [key.m * key.n] * len(self._batch) + [key.n, 1]
        product: list[Any] = [key.dtype, key.out_dtype, key.m, key.n, key.k, list(self._batch), *strides, out]
        facts = {"sm_count": key.sm_count}
        return _core.tuning_key(*product, facts=facts, batch_invariant=key.batch_invariant)

    def _dimension_numbers(self) -> Any:
        shift = len(self._batch)
        contracted = ((shift + int(self._key.majors[0] == "k"),), (shift + int(self._key.majors[1] == "k"),))
        batch = tuple(range(shift))
        return contracted, (batch, batch)

    def _by_xla(self, a: Any, b: Any) -> Any:
        """Exact in fp32, and rounded once."""
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        d = lax.dot_general(a, b, self._dimension_numbers(), precision=lax.Precision.HIGHEST)
        return d.astype(self._key.out_dtype)

    def _program(self, config: str) -> Any:
        """Jitted: the products of a list of operand pairs."""
        dot_general = hopgemm_jax.dot_general_with(config=config, **self._options)

        def product(a: Any, b: Any) -> Any:
            return dot_general(a, b, self._dimension_numbers(), preferred_element_type=self._key.out_dtype)

        return jax.jit(lambda pairs: [product(*pair) for pair in pairs])

    def is_exact(self, config: str) -> bool:
        """See `_tune.Bench`."""
        (found,) = self._program(config)([tuple(self._integers)])
        return bool(jnp.array_equal(found, self._reference))

    def contender(self, config: str) -> _Contender:
        """See `_tune.Bench`."""
        return _Contender(config, self._program(config).lower(self._sets).compile(), self._sets)


class _Contender:
    """One kernel in a program over all sets of operands; see `_bench_protocols.Contender`."""

    name = "hopgemm"

    def __init__(self, config: str, program: Any, sets: Any) -> None:
        self.config, self._compiled, self._sets = config, program, sets

    def run(self, launches: int) -> tuple[int, float]:
        """Whole rotations, by the host's clock."""
        calls = math.ceil(launches / len(self._sets))
        start = time.perf_counter()
        for _ in range(calls):
            results = self._compiled(self._sets)
        jax.block_until_ready(results)  # type: ignore[no-untyped-call]
        return calls * len(self._sets), time.perf_counter() - start


open_bench = Bench


def before_matmul(a: Any, b: Any, out_dtype: Any, options: Any) -> None:
    """`before_dot_general` for a matmul of two arrays."""
    if b.ndim == 2:
        numbers: Any = (((a.ndim - 1,), (0,)), ((), ()))
    elif a.ndim == b.ndim > 2 and a.shape[:-2] == b.shape[:-2]:
        batch = tuple(range(a.ndim - 2))
        numbers = (((a.ndim - 1,), (a.ndim - 2,)), (batch, batch))
    else:  # vectors, and batches that broadcast
        return
    before_dot_general(a, b, (("dimension_numbers", numbers), ("preferred_element_type", out_dtype)), options)


def before_dot_general(lhs: Any, rhs: Any, kwargs: Any, options: Any) -> None:
    """Inside `hopgemm.autotune()`, before a product of arrays runs: tunes it. Does nothing while a function
    is traced, off the GPU, or with several processes, which could choose differently."""
    arrays = all(isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) for x in (lhs, rhs))
    if not arrays or options.config or jax.process_count() > 1 or len(lhs.devices() | rhs.devices()) > 1:
        return
    (device,) = lhs.devices()
    names = lhs.dtype.name, rhs.dtype.name
    if device.platform not in ("gpu", "cuda") or names not in (("bfloat16",) * 2, ("float16",) * 2):
        return
    given = dict(kwargs)
    asked = given.get("preferred_element_type")
    out_dtype = jnp.dtype(lhs.dtype if asked is None else asked).name
    spec = _jax_labels.spec_of(given["dimension_numbers"], lhs.ndim, rhs.ndim)
    if out_dtype not in (names[0], "float32") or _jax_labels.groups(spec) is None:
        return
    left, right, out = _jax_labels.split(spec)
    sizes = {**dict(zip(left, lhs.shape, strict=True)), **dict(zip(right, rhs.shape, strict=True))}
    p = _jax_labels.problem(spec, "", lhs.shape, rhs.shape, tuple(sizes[x] for x in out))
    product = [names[0], out_dtype, p.m, p.n, p.k, p.batch, p.a_strides, p.b_strides, p.d_strides]
    where = {
        "device": int(device.local_hardware_id),
        "sm_limit": options.sm_limit,
        "batch_invariant": options.batch_invariant,
    }
    _tune.at_first_use(product, where, open_bench)
