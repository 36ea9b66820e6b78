"""A two-layer network under jax.jit and jax.grad on hopgemm.matmul.

    python examples/jax_mlp.py

Uses the GPU if there is one; on the CPU hopgemm computes by XLA's own product in float32.
"""

import jax
import jax.numpy as jnp

import hopgemm


def loss(weights, x, target):
    """Mean squared error; the bias is added inside the first product, before its one rounding."""
    w1, b1, w2 = weights
    hidden = jax.nn.gelu(hopgemm.matmul(x, w1, bias=b1))
    return jnp.mean((hopgemm.matmul(hidden, w2, out_dtype=jnp.float32) - target) ** 2)


@jax.jit
def step(weights, x, target):
    """One step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(weights, x, target)
    return value, [w - 0.5 * g.astype(w.dtype) for w, g in zip(weights, gradients, strict=True)]


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0), 4)
    normal = [
        jax.random.normal(key, shape)
        for key, shape in zip(keys, ((256, 512), (512, 1024), (1024, 64), (256, 64)), strict=True)
    ]
    x, w1, w2, target = normal[0], normal[1] / 512**0.5, normal[2] / 1024**0.5, normal[3]
    x, w1, w2 = (value.astype(jnp.bfloat16) for value in (x, w1, w2))
    weights = [w1, jnp.zeros(1024, jnp.bfloat16), w2]
    for i in range(20):
        value, weights = step(weights, x, target)
        if i % 5 == 0:
            print(f"step {i:2}: loss {value:.4f}")
