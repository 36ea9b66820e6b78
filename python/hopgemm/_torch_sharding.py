"""How DTensors may lie for a product: the sharding strategy of `gemm`, registered when DTensor is in use."""

# Much of what is called here has no annotations in torch.
# mypy: disable-error-code="no-untyped-call,no-any-return"
from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from ._context import constant_while_tracing
from ._torch_library import gemm

_MODULE = "torch.distributed.tensor"  # importing it takes a second


def is_dtensor(t: Any) -> bool:
    """Is this a DTensor?"""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(t, module.DTensor)


def flattens_in_place(t: Any) -> bool:
    """Does t.flatten(0, -2) leave the shards of a DTensor where they are? (Those of no other tensor move.)"""
    if not is_dtensor(t):
        return True
    return all(not p.is_shard() or p.dim in (0, t.dim() - 1) for p in t.placements)


@constant_while_tracing
def register_if_used() -> None:
    """Registers the strategy once DTensor has been imported; cheap where it was not, or is already."""
    if _MODULE in sys.modules:
        _register()


@functools.cache
def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    register_sharding(gemm)(_strategy)


def _strategy(*args: Any) -> list[tuple[list[Any], list[Any]]]:
    """What may come in and what comes out, over one dimension of the mesh: (outputs, inputs) each.

    Each option has as many inputs as the call has arguments: the dispatcher drops trailing ones that equal
    their defaults.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    a, b, c, bias = (*args, None, None)[:4]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    rank, m, n = len(shape), len(shape) - 2, len(shape) - 1

    def option(out: Any, *inputs: Any) -> tuple[list[Any], list[Any]]:
        placements = [None if t is None else p for t, p in zip((a, b, c, bias), inputs, strict=True)]
        return [out], (placements + [None] * len(args))[: len(args)]

    def follow(t: Any, dim: int, dims: tuple[int, ...]) -> Any:
        """How t, whose dimensions are the last ones of `dims`, lies beside a result sharded in dim."""
        if t is None or dim not in dims:
            return Replicate()
        own = len(t.shape) - len(dims) + dims.index(dim)
        return Shard(own) if own >= 0 and t.shape[own] == shape[dim] else Replicate()

    every = tuple(range(rank))
    k = -1  # no dimension of the result
    options = [option(Replicate(), *(Replicate(),) * 4)]
    for dim in every:
        options.append(
            option(
                Shard(dim),
                follow(a, dim, (*every[:n], k)),
                follow(b, dim, (*every[:m], k, n)),
                follow(c, dim, every),
                follow(bias, dim, (*every[:m], n)),
            )
        )
    partial = Partial()  # each rank holds a summand: of c and bias too, else they would count once a rank
    options.append(option(partial, Shard(len(a.shape) - 1), Shard(len(b.shape) - 2), partial, partial))
    options.append(option(partial, partial, Replicate(), partial, partial))
    options.append(option(partial, Replicate(), partial, partial, partial))
    return options
