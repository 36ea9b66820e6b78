"""hopgemm under a model that exists: `override_model`."""

from __future__ import annotations

from typing import TypeVar

import torch

from ._torch_linear import Linear

Module = TypeVar("Module", bound=torch.nn.Module)


def override_model(m: Module) -> Module:
    """Makes every torch.nn.Linear in `m`, `m` itself included, a hopgemm.torch.Linear, in place.

    Only the class of a module changes: it stays the same object with the same Parameters, hooks, attributes
    and mode, so that optimizers, tied weights, state dicts and references to it go on as before. A compiled
    model is compiled again. Calling this twice changes nothing more.

    Subclasses of torch.nn.Linear are left alone, as they have a forward of their own (adapters, quantized
    layers, the output projection of torch.nn.MultiheadAttention). So are layers that torch gave such a
    subclass (torch.nn.utils.parametrize, fully_shard): override the model before that.

    Args:
        m: any torch.nn.Module.

    Returns:
        m.

    Raises:
        TypeError: m is not a torch.nn.Module.
    """
    if not isinstance(m, torch.nn.Module):
        raise TypeError(
            f"hopgemm.torch.override_model: m is a {type(m).__name__}; it must be a torch.nn.Module. "
            "For a product of tensors call hopgemm.torch.linear or hopgemm.torch.matmul"
        )
    for module in m.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Linear
            # HAZARD: Dynamo of torch 2.10 looks at a module's type again only once its dict has changed.
            attributes = vars(module)
            attributes["_hopgemm"] = None
            del attributes["_hopgemm"]
    return m
