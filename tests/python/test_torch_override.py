"""hopgemm.torch.override_model: which layers it takes, and that nothing else about a model changes."""

import copy
import functools

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402
from torch_layer_cases import block_of_integers  # noqa: E402

from hopgemm.torch import Linear, override_model  # noqa: E402

fresh, products = torch_cases.fresh, torch_cases.products
integers = functools.partial(torch_cases.integers, low=-1, high=1)


def test_same_modules_parameters_and_results(products):
    model = block_of_integers(dtype=torch.bfloat16)
    want = copy.deepcopy(model).double()
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    keys, text, optimizer = list(model.state_dict()), repr(model), torch.optim.SGD(model.parameters(), 1.0)
    assert override_model(model) is model
    assert type(model.up) is type(model.down) is Linear and type(model.norm) is torch.nn.LayerNorm
    assert all(module is modules[name] for name, module in model.named_modules())
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert list(model.state_dict()) == keys and repr(model) == text

    x = integers(3, 4)
    got, reference = model(x), want(x.double())
    assert torch.equal(got.double(), reference) and len(products) == 4
    got.sum().backward(), reference.sum().backward()
    for p, q in zip((model.up.weight, model.up.bias), (want.up.weight, want.up.bias), strict=True):
        assert q.grad.any() and torch.equal(p.grad.double(), q.grad)
    before = model.up.weight.detach().clone()
    optimizer.step()
    assert torch.equal(model.up.weight, before - model.up.weight.grad)


def test_hooks_mode_and_requires_grad_stay(products):
    model, seen = block_of_integers(dtype=torch.bfloat16).eval(), []
    model.up.register_forward_hook(lambda module, args, out: seen.append(type(module)))
    model.up.weight.requires_grad_(False)
    model.up.note = "kept"
    override_model(model)(integers(3, 4))
    assert seen == [Linear, Linear] and not model.up.training and model.up.note == "kept"
    assert not model.up.weight.requires_grad and model.down.weight.requires_grad


def test_a_layer_itself_and_twice():
    layer = torch.nn.Linear(4, 5)
    assert override_model(layer) is layer and type(layer) is Linear
    assert override_model(layer) is layer and type(layer) is Linear


def test_subclasses_are_left_alone():
    class Adapted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    attention, lazy = torch.nn.MultiheadAttention(8, 2), torch.nn.LazyLinear(3)
    model = override_model(torch.nn.Sequential(Adapted(4, 4), attention, lazy))
    assert type(model[0]) is Adapted and type(model[2]) is torch.nn.LazyLinear
    assert type(attention.out_proj) is not Linear
    q = torch.randn(2, 1, 8)
    assert attention(q, q, q)[0].shape == q.shape


def test_parametrized_before_and_after(products):
    before = override_model(parametrizations.weight_norm(torch.nn.Linear(4, 5, dtype=torch.bfloat16)))
    before(integers(3, 4))
    assert not products
    parametrize.remove_parametrizations(before, "weight")
    assert type(override_model(before)) is Linear
    after = parametrizations.weight_norm(override_model(torch.nn.Linear(4, 5, dtype=torch.bfloat16)))
    after(integers(3, 4)).sum().backward()
    assert len(products) == 1 and after.parametrizations.weight.original1.grad is not None


def test_transformer_layer_of_torch(products):
    """Its inference fast path reads the layers' weights without calling them: there nothing is taken."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.bfloat16)
    plain, x = copy.deepcopy(layer), torch.randn(2, 3, 8).bfloat16()
    override_model(layer)
    assert type(layer.linear1) is type(layer.linear2) is Linear
    torch.testing.assert_close(layer(x), plain(x), rtol=0.02, atol=0.02)
    assert len(products) == 2


def test_a_compiled_model_is_compiled_again(products):
    model, x = block_of_integers(dtype=torch.bfloat16), integers(3, 4)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    want = compiled(x)
    assert override_model(compiled) is compiled
    assert torch.equal(compiled(x), want)
    targets = [[str(node.target) for node in graph.graph.nodes] for graph in counter.graphs]
    assert "hopgemm.gemm.default" not in targets[0] and targets[-1].count("hopgemm.gemm.default") == 4


def test_refusals():
    for wrong in (torch.ones(2), torch.nn.Linear, None):
        with pytest.raises(TypeError, match=rf"m is a {type(wrong).__name__}; it must be a torch.nn.Module"):
            override_model(wrong)
