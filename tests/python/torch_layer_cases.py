"""What the tests of layers share: parameters that are small integers, and the same layer in float64."""

import functools

import torch
import torch_cases

from hopgemm.torch import Linear

integers = functools.partial(torch_cases.integers, low=-2, high=2)


def layer_of_integers(k, n, **options):
    layer = Linear(k, n, **options)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(integers(*p.shape, device=p.device))
    return layer


def twin(layer):
    """The same parameters in a float64 layer of torch."""
    bias = layer.bias is not None
    other = torch.nn.Linear(layer.in_features, layer.out_features, bias, dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    return other


def assert_same(got, want):
    """Bit for bit in got's dtype; `want` may be the float64 of it."""
    assert got.dtype != torch.float64
    torch_cases.assert_same(got.detach().cpu(), want.detach().cpu().to(got.dtype))


def assert_gradients(layer, reference):
    assert {name for name, _ in layer.named_parameters()} == {n for n, _ in reference.named_parameters()}
    for p, q in zip(layer.parameters(), reference.parameters(), strict=True):
        assert p.grad.dtype == p.dtype and (q.grad != 0).any()
        assert_same(p.grad, q.grad)


class Block(torch.nn.Module):
    """Two layers, one of them used twice, under names, in a list and in a plain attribute."""

    def __init__(self, **options):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8, **options), torch.nn.Linear(8, 4, bias=False, **options)
        self.layers = torch.nn.ModuleList([self.up, torch.nn.ReLU(), self.down])
        self.norm = torch.nn.LayerNorm(4, **options)

    def forward(self, x):
        for _ in range(2):
            for layer in self.layers:
                x = layer(x)
        return x


def block_of_integers(**options):
    model = Block(**options)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-1, 2, p.shape))
    return model
