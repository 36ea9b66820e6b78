"""Several JAX processes of one program must compile the same kernels: may tuned configs answer here?

With one process, always. With several, the users' own caches are ignored: each machine has another. A file
that HOPGEMM_CACHE names counts if all processes name one and have the same entries, on which they agree
before the first program with a product of ours is compiled. From then on they stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections.abc import Iterable
from typing import Any

import jax

from . import _cache

_TIMEOUT_MS = 120_000
_KEY = "hopgemm/tuned/"
_UNNAMED = "unnamed"  # what a process says that names no file

_agreeing = threading.Lock()
_outcome: bool | None = None  # of the agreement


def fingerprint(entries: Iterable[_cache.Tuned]) -> str:
    """Of products and configs, in whatever order."""
    plain = sorted((e.gpu, *e.key, e.config) for e in entries)
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def holds(lowering: bool) -> bool:
    """May tuned configs answer in this process? Several processes decide that once, at their first lowering.

    `lowering`: False is for a call that the other processes may not make: it waits for nobody, and until the
    processes have agreed the answer is no.

    RuntimeError where another process does not get to its first lowering within two minutes.
    """
    global _outcome
    if jax.process_count() == 1:
        return True
    if lowering:
        with _agreeing:
            if _outcome is None:
                _outcome = _decide()
    return bool(_outcome)


def _decide() -> bool:
    if not _cache.is_named():
        _say(_UNNAMED)  # and wait for nobody
        return False
    # HAZARD: frozen before the exchange, or an entry could come between it and the answer.
    return _agree(_exchange(fingerprint(_cache.freeze())))


def _agree(fingerprints: list[str]) -> bool:
    if len(set(fingerprints)) == 1:
        return True
    warnings.warn(
        f"hopgemm.jax: the files that {_cache.VARIABLE} names differ between the {len(fingerprints)} JAX "
        "processes, or some name none: tuned configs are not used. Give every process the same file",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def _exchange(mine: str) -> list[str]:
    """Everybody's, by way of JAX's coordination service: no device takes part, so nothing can be out of
    order on one."""
    client = _say(mine)
    if client is None:
        raise RuntimeError("hopgemm.jax: several JAX processes, and jax.distributed was not initialized")
    try:
        return [client.blocking_key_value_get(f"{_KEY}{i}", _TIMEOUT_MS) for i in range(jax.process_count())]
    except Exception as error:
        raise RuntimeError(
            f"hopgemm.jax: not every JAX process compiled a product within {_TIMEOUT_MS // 1000} s, so they "
            f"could not agree on tuned configs ({error}). Set {_cache.VARIABLE}=off"
        ) from error


def _say(mine: str) -> Any:
    """Tells the others; returns the service's client, None where there is none."""
    from jax._src import distributed  # no public way to the service that jax.distributed starts

    client = distributed.global_state.client
    if client is not None:  # overwritten by a second attempt
        client.key_value_set(f"{_KEY}{jax.process_index()}", mine, allow_overwrite=True)
    return client
