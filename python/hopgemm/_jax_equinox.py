"""equinox.nn.Linear with its product computed by a given dot_general."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox
import jax
import jax.numpy as jnp


class Linear(equinox.nn.Linear):
    """An equinox.nn.Linear, field by field, and the function that multiplies."""

    dot_general: Callable[..., jax.Array] = equinox.field(static=True)

    def __init__(self, linear: equinox.nn.Linear, dot_general: Callable[..., jax.Array]) -> None:
        for field in dataclasses.fields(equinox.nn.Linear):
            setattr(self, field.name, getattr(linear, field.name))
        self.dot_general = dot_general

    @jax.named_scope("hopgemm.Linear")
    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        """weight @ x + bias. x: (in_features,), or () where in_features is "scalar"; `key` is ignored."""
        if self.in_features == "scalar":
            if jnp.shape(x) != ():
                raise ValueError(
                    f"hopgemm.jax.replace_linear: x has shape {jnp.shape(x)}; must be () where in_features "
                    'is "scalar". Use jax.vmap over more'
                )
            x = jnp.broadcast_to(x, (1,))
        dtype = jnp.result_type(x, self.weight)
        numbers = (((x.ndim - 1,), (1,)), ((), ()))
        y = self.dot_general(x, self.weight, numbers, preferred_element_type=dtype)
        if self.bias is not None:
            y = y + self.bias
        return jnp.squeeze(y) if self.out_features == "scalar" else y


def replace_linear(model: Any, dot_general: Callable[..., jax.Array]) -> Any:
    """The model with every equinox.nn.Linear as a Linear of this module; see hopgemm.jax.replace_linear."""
    # A subclass has a call of its own, which is left alone; ours is made anew, with this dot_general.
    replaced = lambda m: type(m) in (equinox.nn.Linear, Linear)
    if not any(map(replaced, jax.tree.leaves(model, is_leaf=replaced))):
        raise ValueError(
            f"hopgemm.jax.replace_linear: model of type {type(model).__name__} holds no equinox.nn.Linear; "
            "must hold one or more. Call hopgemm.jax.dot_general in your own layers"
        )
    return jax.tree.map(lambda m: Linear(m, dot_general) if replaced(m) else m, model, is_leaf=replaced)
