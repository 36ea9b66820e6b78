"""The self-test's products through JAX: what arrays without strides, neighbours and `out` can express."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import jax as hopgemm_jax
from ._selftest import Case


class Runner:
    """See `_selftest.Runner`."""

    name = "jax"

    def __init__(self) -> None:
        self._started: list[tuple[Case, Any]] = []

    def takes(self, case: Case) -> bool:
        """Products of matrices with dimension numbers, of which XLA compiles each: no other options."""
        plain = case.alpha == 1 and not (case.beta or case.bias or case.batch)
        return plain and not case.padded

    def start(self, case: Case) -> None:
        """See `_selftest.Runner`."""
        keys = jax.random.split(jax.random.key(case.seed))
        a_size = (case.m, case.k) if case.majors[0] == "k" else (case.k, case.m)
        b_size = (case.k, case.n) if case.majors[1] == "n" else (case.n, case.k)
        a, b = (jax.random.randint(r, s, -2, 3).astype(case.dtype) for r, s in zip(keys, (a_size, b_size)))
        out_dtype = case.out_dtype or case.dtype
        numbers = (((int(case.majors[0] == "k"),), (int(case.majors[1] == "k"),)), ((), ()))
        dot_general = hopgemm_jax.dot_general_with(
            sm_limit=case.sm_limit, batch_invariant=case.batch_invariant, config=case.config or None
        )
        found = dot_general(a, b, numbers, preferred_element_type=out_dtype)
        wide = (a.astype(jnp.float32), b.astype(jnp.float32))
        want = lax.dot_general(*wide, numbers, precision=lax.Precision.HIGHEST).astype(out_dtype)
        self._started.append((case, (found != want).sum()))

    def finish(self) -> list[tuple[Case, str]]:
        """See `_selftest.Runner`."""
        started, self._started = self._started, []
        return [(case, f"{int(wrong)} wrong elements") for case, wrong in started if int(wrong)]
