"""hopgemm.torch.Linear and linear on the CPU, where 16-bit operands go the same way as on a GPU."""

import copy
import inspect
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import torch_cases  # noqa: E402
from torch._dynamo import compiled_autograd  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_cases import DTYPES  # noqa: E402
from torch_layer_cases import assert_gradients, assert_same, integers, layer_of_integers, twin  # noqa: E402

import hopgemm  # noqa: E402
import hopgemm.torch  # noqa: E402
from hopgemm.torch import Linear, linear  # noqa: E402

fresh, products = torch_cases.fresh, torch_cases.products
RANKS = [(4,), (3, 4), (0, 4), (3, 0), (2, 3, 4), (2, 0, 4), (2, 1, 3, 4), (2,) * 8 + (4,)]


# ---- values, and which way a call goes ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", RANKS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_rank_and_its_gradients(products, shape, dtype, with_bias):
    leaves = [integers(*shape, dtype=dtype, grad=True), integers(5, shape[-1], dtype=dtype, grad=True)]
    leaves += [integers(5, dtype=dtype, grad=True)] * with_bias
    wide = [t.detach().double().requires_grad_() for t in leaves]
    got, want = linear(*leaves), F.linear(*wide)
    assert got.dtype == dtype and len(products) == 1
    assert_same(got, want)
    cotangent = integers(*got.shape, dtype=dtype)
    got.backward(cotangent), want.backward(cotangent.double())
    for t, u in zip(leaves, wide, strict=True):
        assert t.grad.dtype == dtype
        assert_same(t.grad, u.grad)


@pytest.mark.parametrize("bias_dtype", [torch.bfloat16, torch.float32])
def test_strides_and_the_one_rounding(products, bias_dtype):
    x, weight = integers(4, 3, 2).mT, integers(4, 6).mT[:, ::2]  # nothing here is contiguous
    x = x[..., :2]
    bias = torch.arange(6).to(bias_dtype) * 2**-9  # lost, if the product were rounded before
    got = linear(x, weight[:, :2], bias)
    want = F.linear(x.double(), weight[:, :2].double(), bias.double())
    assert_same(got, want)
    assert got.is_contiguous() and products == [((4, 2, 2), (2, 6))]


def stays_with_torch():
    x, w, b = integers(3, 4), integers(5, 4), integers(5)
    yield "fp32", (x.float(), w.float(), b.float())
    yield "fp64", (x.double(), w.double(), None)
    yield "1-D weight", (x, w[0])
    yield "bias of one value", (x, w, b[:1])
    yield "bias of no dimension", (x, w, b[0])
    yield "sparse weight", (x.float(), w.float().to_sparse_csr())
    yield "sparse 16-bit weight", (x, w.to_sparse(), None)
    yield "nested x", (torch.nested.nested_tensor([x, x[:2]]), w, b)
    yield "jagged x", (torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged), w, b)
    yield "wrapped weight", (x, TwoTensor(w, w), b)
    yield "wrapped bias", (x, w, TwoTensor(b, b))


@pytest.mark.filterwarnings("ignore:.*nested", "ignore:Sparse CSR")
def test_the_rest_is_torchs_own(products):
    for name, args in stays_with_torch():
        got, want = linear(*args), F.linear(*args)
        assert not products and type(got) is type(want) and got.dtype == want.dtype, name
        parts = zip(got.unbind(), want.unbind(), strict=True) if got.is_nested else [(got, want)]
        assert all(torch.equal(p, q) for p, q in parts), name


def test_errors_are_torchs_own(products):
    x, w, b = integers(3, 4), integers(5, 4), integers(5)
    cases = [
        (x, w.half()), (x.float(), w), (x, integers(5, 3)), (x, w, integers(4)), (x[0, 0], w), (x, w[None]),
        (x, w, b.half()), ([1.0], w), (x, None), (x.int(), w.half()),
    ]  # fmt: skip
    for args in cases:
        assert_same_error(*args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same_error(x.int(), w.float())
    assert not products


def assert_same_error(*args):
    with pytest.raises(Exception) as theirs:
        F.linear(*args)
    with pytest.raises(type(theirs.value)) as ours:
        linear(*args)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("grad", [False, True])
def test_different_devices_are_refused(grad):
    x, w, b = integers(3, 4, grad=grad), integers(5, 4, grad=grad), integers(5)
    for args in ((x, w.to("meta")), (x.to("meta"), w), (x, w, b.to("meta")), (x, w.to("meta"), b.to("meta"))):
        with pytest.raises(TypeError, match="on cpu .* on meta|on meta .* on cpu"):
            linear(*args)


def test_other_devices(products, monkeypatch):
    """Fake CUDA tensors: the device decides, whatever this machine has."""
    for runs in (True, False):
        asked = []
        monkeypatch.setattr(hopgemm.torch, "_kernel_runs_on", lambda d, runs=runs: asked.append(d) or runs)
        with FakeTensorMode():
            x, w = (torch.empty(s, dtype=torch.bfloat16, device="cuda:0") for s in ((3, 4), (5, 4)))
            y = linear(x, w)
        assert asked == [torch.device("cuda:0")] and y.shape == (3, 5) and y.device == x.device
        assert len(products) == 1  # of the first turn


def test_settings_reach_the_product(monkeypatch):
    seen = []
    monkeypatch.setattr(hopgemm.torch, "_product", lambda *args: seen.append(args[-3:]) or integers(3, 5))
    with hopgemm.sm_limit(7), hopgemm.batch_invariant():
        linear(integers(3, 4), integers(5, 4))
    assert seen == [("", 7, True)]


# ---- the module ----


def test_constructor_state_dict_and_repr():
    assert inspect.signature(Linear) == inspect.signature(torch.nn.Linear)
    for args in ({}, {"bias": False}, {"dtype": torch.bfloat16}, {"device": "meta"}):
        torch.manual_seed(3)
        ours = Linear(4, 5, **args)
        torch.manual_seed(3)
        theirs = torch.nn.Linear(4, 5, **args)
        assert isinstance(ours, torch.nn.Linear) and repr(ours) == repr(theirs)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert p.shape == q.shape and p.dtype == q.dtype and p.device == q.device
            assert p.is_meta or torch.equal(p, q)  # one initialization, from one seed


def test_state_dict_to_torch_and_back(tmp_path):
    theirs, ours = torch.nn.Linear(4, 5).bfloat16(), layer_of_integers(4, 5, dtype=torch.bfloat16)
    theirs.load_state_dict(ours.state_dict())
    torch.save(theirs.state_dict(), tmp_path / "state")
    back = Linear(4, 5, dtype=torch.bfloat16)
    back.load_state_dict(torch.load(tmp_path / "state"))
    x = integers(3, 4)
    assert torch.equal(back(x), ours(x))


def test_pickle_in_a_fresh_process(tmp_path):
    torch.save(layer_of_integers(4, 5, dtype=torch.bfloat16), tmp_path / "layer")
    code = (
        "import sys, torch; layer = torch.load(sys.argv[1], weights_only=False); import hopgemm.torch; "
        "assert type(layer) is hopgemm.torch.Linear; layer(torch.ones(2, 4).bfloat16())"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "layer")], check=True)


def test_copies_compute_alike_and_train_apart(products):
    layer, x = layer_of_integers(4, 5, dtype=torch.bfloat16), integers(3, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is Linear and other.weight is not layer.weight
        assert torch.equal(other(x), layer(x))
        other(x).sum().backward()
        assert other.weight.grad is not None and layer.weight.grad is None
    assert len(products) == 6


def test_meta_device_then_empty(products):
    layer = Linear(4, 5, device="meta", dtype=torch.bfloat16)
    y = layer(torch.empty(2, 3, 4, device="meta", dtype=torch.bfloat16))
    assert y.shape == (2, 3, 5) and y.is_meta and y.dtype == torch.bfloat16 and len(products) == 1
    source = layer_of_integers(4, 5, dtype=torch.bfloat16)
    layer.to_empty(device="cpu").load_state_dict(source.state_dict())
    x = integers(3, 4)
    assert torch.equal(layer(x), source(x))


class _Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_parametrize(products):
    layer, x = layer_of_integers(4, 5, dtype=torch.bfloat16), integers(3, 4)
    want = F.linear(x.double(), 2 * layer.weight.double(), layer.bias.double())
    parametrize.register_parametrization(layer, "weight", _Doubled())
    got = layer(x)
    assert_same(got, want)
    got.sum().backward()
    original = layer.parametrizations.weight.original
    assert_same(original.grad, 2 * x.double().sum(0).expand(5, 4))
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is Linear and torch.equal(layer(x), got) and len(products) == 2


# ---- training ----


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_with_master_weights(products, dtype, with_bias):
    layer = layer_of_integers(4, 5, bias=with_bias)  # float32
    reference, x = twin(layer), integers(2, 3, 4, dtype=torch.float32, grad=True)
    wide = x.detach().double().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
        assert y.dtype == dtype
        with torch.autocast("cpu", enabled=False):
            assert layer(x).dtype == torch.float32
        assert reference(wide).dtype == linear(wide, reference.weight).dtype == torch.float64  # not cast
    assert len(products) == 1
    want = reference(wide)
    assert_same(y, want)
    (y.float() * 2).sum().backward(), (want * 2).sum().backward()
    assert x.grad.dtype == torch.float32
    assert_same(x.grad, wide.grad)


@pytest.mark.parametrize("with_bias", [False, True])
def test_autocast_gradients_are_float32(with_bias):
    layer = layer_of_integers(4, 5, bias=with_bias)
    reference, x = twin(layer), integers(6, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    y.sum().backward(), reference(x.double()).sum().backward()
    assert_gradients(layer, reference)


def test_second_order():
    layer, x = layer_of_integers(4, 5, dtype=torch.float16), integers(3, 4, dtype=torch.float16, grad=True)
    reference, wide = twin(layer), x.detach().double().requires_grad_()
    for module, t in ((layer, x), (reference, wide)):
        (g,) = torch.autograd.grad((module(t) ** 2).sum(), t, create_graph=True)
        (g * t).sum().backward()
    assert_same(x.grad, wide.grad)
    assert_gradients(layer, reference)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(products, reentrant):
    layer, x = layer_of_integers(4, 4, dtype=torch.bfloat16), integers(3, 4, grad=True)
    reference, wide = twin(layer), x.detach().double().requires_grad_()
    checkpoint(lambda t: layer(layer(t)), x, use_reentrant=reentrant).sum().backward()
    reference(reference(wide)).sum().backward()
    assert len(products) == 4  # forward, and once more in backward
    assert_same(x.grad, wide.grad)
    assert_gradients(layer, reference)


@pytest.mark.parametrize("x_shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("weight", "bias")])
@pytest.mark.parametrize("region", [False, True])
def test_checkpointing_saves_alike_either_way(x_shape, frozen, region):
    """What is computed again in backward does not see the block around the forward."""
    layer = layer_of_integers(4, 5, dtype=torch.float32 if region else torch.bfloat16)
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
    blocks = [hopgemm.batch_invariant(), hopgemm.sm_limit(8), FlopCounterMode(display=False)]
    for block in blocks:
        x = integers(*x_shape, dtype=layer.weight.dtype, grad=True)
        reference, wide = twin(layer), x.detach().double().requires_grad_()
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=region), block:
            y = checkpoint(layer, x, use_reentrant=False)
        y.sum().backward()
        reference(wide).sum().backward()
        assert_same(x.grad, wide.grad)
        for p, q in zip(layer.parameters(), reference.parameters(), strict=True):
            if p.requires_grad:
                assert_same(p.grad, q.grad)


@pytest.mark.parametrize("region", [False, True])
def test_compiled_autograd(region):
    layer = layer_of_integers(4, 5, dtype=torch.float32 if region else torch.bfloat16)
    x = integers(3, 4, dtype=layer.weight.dtype, grad=True)
    reference, wide = twin(layer), x.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=region):
        y = layer(x)
    with compiled_autograd._enable(lambda graph: graph):
        y.sum().backward()
    reference(wide).sum().backward()
    assert_same(x.grad, wide.grad)
    assert_gradients(layer, reference)


@pytest.mark.parametrize("frozen", ["x", "weight", None])
@pytest.mark.parametrize("create_graph", [False, True])
def test_backward_in_a_region_of_another_dtype(frozen, create_graph):
    """The gradients are of the forward's dtype: 2**17 is no float16."""
    layer, x = layer_of_integers(4, 5, bias=False, dtype=torch.bfloat16), integers(3, 4, grad=True)
    if frozen:
        (x if frozen == "x" else layer.weight).requires_grad_(False)
    wanted = [t for t in (x, layer.weight) if t.requires_grad]
    y = layer(x)
    cotangent = torch.full_like(y, 2**17)
    want = torch.autograd.grad(y, wanted, cotangent, retain_graph=True)
    with torch.autocast("cpu", torch.float16):
        got = torch.autograd.grad(y, wanted, cotangent, create_graph=create_graph)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == torch.bfloat16 and w.isfinite().all()
        assert_same(g, w)


def test_per_sample_gradients_and_an_ensemble():
    layer = layer_of_integers(4, 5, dtype=torch.bfloat16)
    x, params = integers(3, 4), {name: p.detach() for name, p in layer.named_parameters()}
    call = lambda p, t: torch.func.functional_call(layer, p, (t,))
    got = torch.func.vmap(torch.func.grad(lambda p, t: call(p, t).sum()), (None, 0))(params, x)
    assert_same(got["weight"], x[:, None, :].double().expand(3, 5, 4))
    assert_same(got["bias"], torch.ones(3, 5).double())
    stack = {"weight": integers(2, 5, 4), "bias": integers(2, 5)}
    want = torch.einsum("mk,snk->smn", x.double(), stack["weight"].double()) + stack["bias"].double()[:, None]
    assert_same(torch.func.vmap(call, (0, None))(stack, x), want)


# ---- compile and export ----


def calls_of(graph):
    """The operators that a graph calls; attributes of tensors, such as .mT, are no calls."""
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    return [str(node.target) for node in nodes if node.target is not getattr]


@pytest.mark.parametrize("with_bias", [False, True])
def test_compile_whole_with_one_graph_for_all_sizes(with_bias):
    counter = CompileCounterWithBackend("aot_eager")
    layer = layer_of_integers(4, 5, bias=with_bias, dtype=torch.bfloat16)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for rows in (3, 6, 7):  # not 4 or 5: to torch.compile, equal sizes are one symbol
        layer.zero_grad()
        reference, x = twin(layer), integers(rows, 4)
        got, want = compiled(x), reference(x.double())
        assert_same(got, want)
        got.sum().backward(), want.sum().backward()
        assert_gradients(layer, reference)
    # The graph beside it, if any, is an empty one: of reading the environment, once, while tracing.
    assert [calls_of(graph) for graph in counter.graphs if calls_of(graph)] == [["hopgemm.gemm.default"]]


@pytest.mark.parametrize("region", [None, torch.bfloat16])
def test_compile_float32_with_and_without_autocast(region):
    counter = CompileCounterWithBackend("aot_eager")
    layer, x = layer_of_integers(4, 5), integers(2, 3, 4, dtype=torch.float32)
    reference = twin(layer)
    with torch.autocast("cpu", dtype=region, enabled=region is not None):
        got = torch.compile(layer, fullgraph=True, backend=counter)(x)
    assert got.dtype == (region or torch.float32)
    targets = [target for graph in counter.graphs for target in calls_of(graph)]
    assert targets.count("hopgemm.gemm.default") == (region is not None)
    assert_same(got, reference(x.double()))
    got.sum().backward(), reference(x.double()).sum().backward()
    assert_gradients(layer, reference)


def test_compile_more_dimensions_than_matmul_has():
    layer, x = layer_of_integers(4, 5, dtype=torch.bfloat16), integers(*RANKS[-1])
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert_same(got, twin(layer)(x.double()))


def test_export():
    layer, x = layer_of_integers(4, 5, dtype=torch.bfloat16), integers(3, 4)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: rows},))
    assert "hopgemm.gemm.default" in calls_of(program.graph_module)
    for t in (x, integers(17, 4)):
        assert torch.equal(program.module()(t), layer(t))
