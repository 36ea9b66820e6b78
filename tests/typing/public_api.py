"""What a type checker must see of the public names; `ci/test` runs mypy on this file, nobody imports it.

An `ignore` marks what must be refused: mypy reports an ignore that refuses nothing.
"""

from typing import assert_type

import jax
import jax.numpy as jnp
import torch

import hopgemm
import hopgemm.jax
import hopgemm.torch

t = torch.zeros(8, 8, dtype=torch.bfloat16)
j = jnp.zeros((8, 8), jnp.bfloat16)

assert_type(hopgemm.matmul(t, t), torch.Tensor)
assert_type(hopgemm.matmul(t, t, bias=t[0], c=t, alpha=2, beta=0.5, out=t, sm_limit=8), torch.Tensor)
assert_type(hopgemm.matmul(t, t, out_dtype=torch.float32, config=None, fallback=True), torch.Tensor)
assert_type(hopgemm.matmul(j, j), jax.Array)
assert_type(hopgemm.matmul(j, j, bias=j[0], out_dtype=jnp.float32, batch_invariant=True), jax.Array)
assert_type(hopgemm.torch.matmul(t, t), torch.Tensor)
assert_type(hopgemm.jax.matmul(j, j), jax.Array)

hopgemm.matmul(t, j)  # type: ignore[call-overload]
hopgemm.matmul([1.0], [2.0])  # type: ignore[call-overload]
hopgemm.matmul(j, j, out=j)  # type: ignore[call-overload]
hopgemm.matmul(a=t, b=t)  # type: ignore[call-overload]
hopgemm.torch.matmul(j, j)  # type: ignore[arg-type]
hopgemm.jax.matmul(t, t)  # type: ignore[arg-type]

plan = hopgemm.plan(m=64, n=64, k=64, dtype="bfloat16")
assert_type(plan, hopgemm.Plan)
assert_type(plan.config, str)
assert_type(plan.workspace_bytes, int)
assert_type(hopgemm.sm_count(0), int)
assert_type(hopgemm.__version__, str)

with hopgemm.sm_limit(64), hopgemm.batch_invariant(), hopgemm.fallback(False):
    hopgemm.matmul(t, t)
hopgemm.sm_limit("all")  # type: ignore[arg-type]
