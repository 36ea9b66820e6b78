"""A feed-forward network split over 2 GPUs in JAX: each holds half of every weight.

    python examples/tensor_parallel_mlp_jax.py              on 2 GPUs
    python examples/tensor_parallel_mlp_jax.py --small      on the CPU too, with 2 virtual devices

The first weight is sharded by columns, the second by rows; the types say so (Explicit axes, jax.make_mesh's
default), and one all-reduce forward and one backward are all that crosses. `hopgemm.jax.dot_general` stands
where lax's stood. Prints the time of a step, forward and backward, beside XLA's own product, and what
crosses.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import hopgemm.jax

RANKS = 2
SIZE = {"width": 4096, "hidden": 14336, "tokens": 8192}
TINY = {"width": 32, "hidden": 64, "tokens": 16}
LAST_BY_FIRST = (((1,), (0,)), ((), ()))


def loss(weights: Any, x: jax.Array, dot_general: Callable[..., jax.Array]) -> jax.Array:
    """x (tokens, width), replicated; weights (width, hidden) and (hidden, width), bfloat16."""
    up, down = weights
    hidden = jax.nn.gelu(dot_general(x, up, LAST_BY_FIRST))
    # The sum over `hidden` crosses the devices: its result has to be asked for.
    y = dot_general(hidden, down, LAST_BY_FIRST, out_sharding=P(None, None))
    return jnp.mean(y.astype(jnp.float32) ** 2)


@functools.partial(jax.jit, static_argnames="dot_general")
def step(weights: Any, x: jax.Array, *, dot_general: Callable[..., jax.Array]) -> Any:
    """The loss, and its gradients by the weights and x, sharded as they are."""
    return jax.value_and_grad(loss, argnums=(0, 1))(weights, x, dot_general)


def step_ms(run: Callable[[], Any], calls: int) -> float:
    """Mean time of a call."""
    jax.block_until_ready(run())
    start = time.perf_counter()
    for _ in range(calls):
        result = run()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls * 1e3


def check(results: dict[str, Any], whole: Any) -> None:
    """AssertionError unless every contender has the whole network's loss and gradients, but for rounding."""
    for result in results.values():
        for found, want in zip(jax.tree.leaves(result), jax.tree.leaves(whole), strict=True):
            found, want = np.asarray(found, np.float32), np.asarray(want, np.float32)
            np.testing.assert_allclose(found, want, rtol=0.05, atol=0.05 * np.sqrt(np.mean(want**2)))


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measures, prints, and returns the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a tiny network, for a machine without 2 GPUs")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the record here")
    options = parser.parse_args(argv)
    size, rounds, calls = (TINY, 1, 1) if options.small else (SIZE, 5, 20)
    jax.config.update("jax_num_cpu_devices", RANKS)  # where there is no GPU
    if jax.device_count() < RANKS or (jax.default_backend() != "gpu" and not options.small):
        parser.error(f"fewer than {RANKS} GPUs here: add --small, and JAX_PLATFORMS=cpu beside one GPU")

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [
        (size["tokens"], size["width"]),
        (size["width"], size["hidden"]),
        (size["hidden"], size["width"]),
    ]
    scales = [1, size["width"] ** -0.5, size["hidden"] ** -0.5]
    x, up, down = (
        (jax.random.normal(key, shape) * scale).astype(jnp.bfloat16)
        for key, shape, scale in zip(keys, shapes, scales, strict=True)
    )
    jax.set_mesh(jax.make_mesh((RANKS,), ("model",)))
    x, up, down = jax.device_put((x, up, down), P(None, None))  # whole, on both
    whole = step((up, down), x, dot_general=lax.dot_general)
    weights = (jax.device_put(up, P(None, "model")), jax.device_put(down, P("model", None)))

    products = {"jax": lax.dot_general, "hopgemm": hopgemm.jax.dot_general}
    programs = {name: step.lower(weights, x, dot_general=f).compile() for name, f in products.items()}
    runs = {name: functools.partial(program, weights, x) for name, program in programs.items()}
    check({name: run() for name, run in runs.items()}, whole)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(step_ms(run, calls))
    crossing = re.findall(
        r" (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", programs["hopgemm"].as_text()
    )
    record = {
        "example": "tensor_parallel_mlp_jax",
        "device": f"{RANKS} x {jax.devices()[0].device_kind}",
        "jax": jax.__version__,
        "size": size,
        "step_ms": {name: statistics.median(values) for name, values in times.items()},
        "collectives": crossing,
    }
    print(f"{record['device']}, jax {jax.__version__}, {size}")
    print(
        ", ".join(f"{name} {ms:.3f} ms" for name, ms in record["step_ms"].items()) + " a step; results agree"
    )
    print(f"crossing the devices: {', '.join(crossing)}")
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return record


if __name__ == "__main__":
    main()
