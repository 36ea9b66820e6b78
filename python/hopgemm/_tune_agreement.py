"""Several JAX processes of one program must compile the same kernels: may tuned configs answer here?

With one process, always. With several, the users' own caches are ignored: each machine has another. A file
that HOPGEMM_CACHE names counts if all processes have the same entries, on which they agree before the first
program with a product of ours is compiled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import warnings

import jax

from . import _cache

_TIMEOUT_MS = 120_000
_KEY = "hopgemm/tuned/"


def fingerprint() -> str:
    """Of the entries that answer in this process: products and configs, in a fixed order."""
    entries = sorted((e.gpu, *e.key, e.config) for e in _cache.in_force())
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


@functools.cache
def holds() -> bool:
    """May tuned configs answer in this process? Decided once; with several processes all must get here.

    RuntimeError where another process does not within two minutes.
    """
    if jax.process_count() == 1:
        return True
    if not _cache.is_named():
        return False
    return _agree(_exchange(fingerprint()))


def _agree(fingerprints: list[str]) -> bool:
    if len(set(fingerprints)) == 1:
        return True
    warnings.warn(
        f"hopgemm.jax: the files that {_cache.VARIABLE} names differ between the {len(fingerprints)} JAX "
        "processes: tuned configs are not used. Give every process the same file",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def _exchange(mine: str) -> list[str]:
    """Everybody's, by way of JAX's coordination service: no device takes part, so nothing can be out of
    order on one."""
    from jax._src import distributed  # no public way to the service that jax.distributed starts

    client = distributed.global_state.client
    if client is None:
        raise RuntimeError("hopgemm.jax: several JAX processes, and jax.distributed was not initialized")
    client.key_value_set(f"{_KEY}{jax.process_index()}", mine)
    try:
        return [client.blocking_key_value_get(f"{_KEY}{i}", _TIMEOUT_MS) for i in range(jax.process_count())]
    except Exception as error:
        raise RuntimeError(
            f"hopgemm.jax: not every JAX process compiled a product within {_TIMEOUT_MS // 1000} s, so they "
            f"could not agree on tuned configs ({error}). Set {_cache.VARIABLE}=off"
        ) from error
