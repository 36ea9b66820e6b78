"""GPT-2 small trained in JAX: as it is, with its sums in two other orders, and on hopgemm.

    python examples/train_gpt_jax.py --json jax.json          about 2 minutes on an H200
    python examples/train_gpt_jax.py --small --steps 20       a tiny model, on the CPU too

fp32 master weights, bfloat16 products. The model takes the function that multiplies, `lax.dot_general` or
`hopgemm.jax.dot_general`: all else is the same program. Prints step times, losses and the share of
matrix-product FLOPs in hopgemm, counted in the program that XLA gets.
"""

from __future__ import annotations

import collections
import functools
import math
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

import gpt_training
import jax
import jax.numpy as jnp
import numpy as np
from gpt_training import BACKWARDS, FRAMEWORK, FROM_THE_MIDDLE, HOPGEMM, Size
from jax import lax

import hopgemm.jax

Params = dict[str, Any]
DotGeneral = Callable[..., jax.Array]
ON_GPU = jax.default_backend() == "gpu"


def backwards(lhs: jax.Array, rhs: jax.Array, numbers: Any) -> jax.Array:
    """XLA's own products, each sum backwards: that of this one, and of its derivatives."""
    return jnp.flip(lax.dot_general(jnp.flip(lhs), jnp.flip(rhs), numbers))


def from_the_middle(lhs: jax.Array, rhs: jax.Array, numbers: Any) -> jax.Array:
    """As backwards(), but each sum begins in the middle and goes round."""
    return half_round(lax.dot_general(half_round(lhs), half_round(rhs), numbers), -1)


def half_round(x: jax.Array, direction: int = 1) -> jax.Array:
    """Every dimension rolled by half of its length; direction -1 rolls it back."""
    return jnp.roll(x, [direction * (length // 2) for length in x.shape], range(x.ndim))


PRODUCTS: dict[str, DotGeneral] = {
    FRAMEWORK: lax.dot_general,
    BACKWARDS: backwards,
    FROM_THE_MIDDLE: from_the_middle,
    HOPGEMM: hopgemm.jax.dot_general,
}


# ---- the model ----


@functools.partial(jax.jit, static_argnums=0)
def new_params(size: Size, key: jax.Array) -> Params:
    """fp32 weights, as GPT-2 draws them; kernels are (inputs, outputs)."""
    w, depth = size.width, math.sqrt(2 * size.layers)
    kernels = {"qkv": (w, 3 * w, 1), "proj": (w, w, depth), "up": (w, 4 * w, 1), "down": (4 * w, w, depth)}

    def normal(key: jax.Array, rows: int, columns: int, divisor: float = 1) -> jax.Array:
        return jax.random.normal(key, (rows, columns)) * (0.02 / divisor)

    def norm() -> Params:
        return {"scale": jnp.ones(w), "bias": jnp.zeros(w)}

    def block(key: jax.Array) -> Params:
        keys = jax.random.split(key, len(kernels))
        layers = {
            name: {"kernel": normal(k, *shape), "bias": jnp.zeros(shape[1])}
            for k, (name, shape) in zip(keys, kernels.items(), strict=True)
        }
        return {**layers, "norm1": norm(), "norm2": norm()}

    tokens, positions, *blocks = jax.random.split(key, size.layers + 2)
    return {
        "tokens": normal(tokens, size.vocab, w),
        "positions": normal(positions, size.length, w),
        "blocks": [block(k) for k in blocks],
        "norm": norm(),
    }


def layer_norm(x: jax.Array, p: Params) -> jax.Array:
    """x (..., width) fp32 -> bfloat16."""
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return (x * p["scale"] + p["bias"]).astype(jnp.bfloat16)


def linear(x: jax.Array, p: Params, dot_general: DotGeneral) -> jax.Array:
    """x (..., inputs) bfloat16 -> (..., outputs) bfloat16; the fp32 master weights are rounded first."""
    kernel = p["kernel"].astype(jnp.bfloat16)
    return dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ()))) + p["bias"].astype(jnp.bfloat16)


def block(x: jax.Array, p: Params, heads: int, dot_general: DotGeneral) -> jax.Array:
    """One transformer layer on x (batch, length, width), fp32."""
    qkv = linear(layer_norm(x, p["norm1"]), p["qkv"], dot_general)
    q, k, v = jnp.moveaxis(qkv.reshape(*x.shape[:2], 3, heads, -1), 2, 0)
    # cuDNN's attention is one kernel, as PyTorch's: no matrix product that could be anybody's.
    attention = jax.nn.dot_product_attention(
        q, k, v, is_causal=True, implementation="cudnn" if ON_GPU else "xla"
    )
    x = x + linear(attention.reshape(x.shape), p["proj"], dot_general)
    hidden = jax.nn.gelu(linear(layer_norm(x, p["norm2"]), p["up"], dot_general))
    return x + linear(hidden, p["down"], dot_general)


def loss_of(params: Params, tokens: jax.Array, heads: int, dot_general: DotGeneral) -> jax.Array:
    """tokens (batch, length + 1) integers -> the mean cross entropy of each token after the first."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = params["tokens"][inputs] + params["positions"][: inputs.shape[1]]
    for p in params["blocks"]:
        x = block(x, p, heads, dot_general)
    embedding = params["tokens"].astype(jnp.bfloat16)
    logits = dot_general(layer_norm(x, params["norm"]), embedding, (((2,), (1,)), ((), ())))
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


# ---- training ----


def adamw(
    p: jax.Array, g: jax.Array, m: jax.Array, v: jax.Array, count: jax.Array, rate: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One parameter's `count`th update (from 1 on), and its new moments."""
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
    update = m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.95**count)) + 1e-8)
    return p - rate * (update + 0.1 * p), m, v


@functools.partial(jax.jit, static_argnames=("heads", "dot_general"), donate_argnames="state")
def train_step(
    state: Any, tokens: jax.Array, rate: float, *, heads: int, dot_general: DotGeneral
) -> tuple[Any, jax.Array]:
    """(params, first moments, second moments, steps done) -> the same after one step, and the loss."""
    params, m, v, step = state
    loss, grads = jax.value_and_grad(loss_of)(params, tokens, heads, dot_general)
    leaves, tree = jax.tree.flatten(params)
    moments = (jax.tree.leaves(x) for x in (grads, m, v))
    updated = [adamw(*leaf, step + 1, rate) for leaf in zip(leaves, *moments, strict=True)]
    params, m, v = (jax.tree.unflatten(tree, x) for x in zip(*updated, strict=True))
    return (params, m, v, step + 1), loss


class Run:
    """One model and its optimizer; the same weights and batches whatever `name` is."""

    def __init__(self, name: str, size: Size, data: np.ndarray) -> None:
        params = new_params(size, jax.random.key(0))
        zeros = [jax.tree.map(jnp.zeros_like, params) for _ in range(2)]
        self.state, self.data, self.steps = (params, *zeros, jnp.int32(0)), jnp.asarray(data), 0
        self.static = {"heads": size.heads, "dot_general": PRODUCTS[name]}

    def step(self, wait: bool = True) -> jax.Array:
        """One step of training; returns the loss before it."""
        tokens, rate = self.data[self.steps % len(self.data)], gpt_training.learning_rate(self.steps)
        self.state, loss = train_step(self.state, tokens, rate, **self.static)
        self.steps += 1
        return loss.block_until_ready() if wait else loss

    def program(self) -> str:
        """The step as XLA for CUDA gets it, StableHLO; no GPU is needed for it."""
        traced = train_step.trace(self.state, self.data[0], 0.0, **self.static)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


# ---- what ran ----


def gemm_flops(program: str) -> dict[str, int]:
    """FLOPs of the linear layers' products in a StableHLO program, and of those that call hopgemm.

    Products with batch dimensions are attention's, where no fused kernel does it; they do not count.
    """
    flops = {"total": 0, "hopgemm": 0}
    for line in program.splitlines():
        tensors = re.findall(r"tensor<([\dx]*)x\w+>", line.rpartition(" : (")[2])
        lhs, rhs, *out = ([int(n) for n in t.split("x")] for t in tensors) if len(tensors) > 2 else ([], [])
        if "stablehlo.dot_general" in line and "batching_dims" not in line:
            contracted = re.search(r"contracting_dims = \[([\d, ]+)\]", line)
            depth = math.prod(lhs[int(i)] for i in contracted[1].split(","))
            flops["total"] += 2 * math.prod(out[0]) * depth
        elif "stablehlo.custom_call @hopgemm.matmul" in line:
            left, right, _ = re.split("->|,", re.search(r'spec = "([^"]+)"', line)[1])
            sizes = dict(zip(left + right, lhs + rhs, strict=True))
            flops["total"] += 2 * math.prod(sizes.values())
            flops["hopgemm"] += 2 * math.prod(sizes.values())
    return flops


def profiled_kernels(run: Run) -> dict[str, int]:
    """How often each kernel that multiplies matrices ran on the GPU in one step, by its name."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run.step()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        profiled = jax.profiler.ProfileData.from_file(str(path))
    gpus = [plane for plane in profiled.planes if plane.name.startswith("/device:GPU")]
    names = [event.name for gpu in gpus for line in gpu.lines for event in line.events]
    # cuBLAS calls its kernels nvjet, cutlass or gemm, XLA its own gemm_fusion.
    return dict(collections.Counter(n for n in names if re.search("hopgemm|nvjet|cutlass|gemm", n)))


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Trains, prints, and returns the record."""
    parser = gpt_training.argument_parser(__doc__)
    options = parser.parse_args(argv)
    if not ON_GPU and not options.small:
        parser.error("no GPU here: add --small")
    size = gpt_training.size_of(options)
    data = gpt_training.batches(size, options.steps)
    runs = {name: Run(name, size, data) for name in PRODUCTS}
    losses = {name: [float(run.step()) for _ in range(options.steps)] for name, run in runs.items()}
    record = {
        "example": "train_gpt_jax",
        "framework": f"jax {jax.__version__}",
        "device": jax.devices()[0].device_kind,
        "size": vars(size),
        "loss": losses,
        "gemm": gemm_flops(runs[HOPGEMM].program()),
        "gemm_kernels": profiled_kernels(runs[HOPGEMM]),
        "step_ms": gpt_training.median_step_ms(
            {name: run.step for name, run in runs.items()}, rounds=1 if options.small else 5
        ),
    }
    gpt_training.report(record, options.json)
    for name, count in sorted(record["gemm_kernels"].items()):
        print(f"{count:5} {name:.100}")
    return record


if __name__ == "__main__":
    main()
