"""What the checks of hopgemm.torch.override() share: exact operands, a call of each operator, its result."""

import pytest
import torch
from torch.library import get_kernel

from hopgemm._torch_aten import kernels

OPERATORS = kernels().operators


@pytest.fixture(autouse=True)
def restored():
    """Every test here must leave torch's kernels as it found them."""
    torch.manual_seed(0)
    before = standing()
    yield
    assert standing() == before and not kernels()._installed


def standing():
    return [repr(get_kernel(f"aten::{operator}", "CPU")) for operator in OPERATORS]


def integers(*shape, dtype=torch.bfloat16, grad=False):
    return torch.randint(-2, 3, shape).to(dtype).requires_grad_(grad)


def product(a, b):
    """In float64, by numpy: torch's own would be counted."""
    return torch.from_numpy(a.double().numpy() @ b.double().numpy())


def operands(dtype=torch.bfloat16):
    a, b, c = integers(3, 8, dtype=dtype), integers(8, 5, dtype=dtype), integers(3, 5, dtype=dtype)
    return a, b, c, a.expand(2, 3, 8), b.expand(2, 8, 5), c.expand(2, 3, 5)


CALLS = {  # of operands(): the call, its exact result in float64
    "mm": (lambda a, b, c, x, y, z: torch.mm(a, b), lambda a, b, c, x, y, z: product(a, b)),
    "mm.out": (
        lambda a, b, c, x, y, z: torch.mm(a, b, out=torch.empty_like(c)),
        lambda a, b, c, x, y, z: product(a, b),
    ),
    "bmm": (lambda a, b, c, x, y, z: torch.bmm(x, y), lambda a, b, c, x, y, z: product(x, y)),
    "bmm.out": (
        lambda a, b, c, x, y, z: torch.bmm(x, y, out=torch.empty(2, 3, 5, dtype=c.dtype)),
        lambda a, b, c, x, y, z: product(x, y),
    ),
    "addmm": (
        lambda a, b, c, x, y, z: torch.addmm(c, a, b, beta=0.5, alpha=2),
        lambda a, b, c, x, y, z: 0.5 * c.double() + 2 * product(a, b),
    ),
    "addmm.out": (
        lambda a, b, c, x, y, z: torch.addmm(c[0], a, b, out=torch.empty_like(c)),
        lambda a, b, c, x, y, z: c[0].double() + product(a, b),
    ),
    "baddbmm": (
        lambda a, b, c, x, y, z: torch.baddbmm(z, x, y, beta=2.0),
        lambda a, b, c, x, y, z: 2 * z.double() + product(x, y),
    ),
    "baddbmm.out": (
        lambda a, b, c, x, y, z: torch.baddbmm(z, x, y, out=torch.empty(2, 3, 5, dtype=c.dtype)),
        lambda a, b, c, x, y, z: z.double() + product(x, y),
    ),
}


def failure(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return type(error), str(error)
    return None
