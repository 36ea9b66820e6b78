"""What hopgemm.torch.Linear costs beside torch.nn.Linear, counted: kernels, nodes of autograd, copies.

`test_torch_cpp.py` runs this file again over the C++ operators.
"""

import itertools
import re
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import torch_cases  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch_layer_cases import assert_same, integers, layer_of_integers, twin  # noqa: E402

from hopgemm import _torch_library, _torch_linear_eager  # noqa: E402
from hopgemm.torch import linear, matmul  # noqa: E402

fresh = torch_cases.fresh
B16, F32 = torch.bfloat16, torch.float32
# aten operators that a GPU runs a kernel for, among those that a layer calls.
ONE_KERNEL = ("hopgemm::_linear", "aten::sum")
KERNELS = ("addmm", "mm", "bmm", "sum", "add", "copy_", "clone", "mul", "fill_")


def calls_of(function):
    """What `function` calls, by operator.

    Not what hopgemm's operators, and a sum of bfloat16 in float32, call in turn: on a GPU each is one kernel.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        function()

    def is_inside(event):
        parent = event.cpu_parent
        return parent is not None and (parent.name.startswith(ONE_KERNEL) or is_inside(parent))

    return Counter(event.name for event in profiled.events() if not is_inside(event))


def kernels_of(calls):
    named = {name: n for name, n in calls.items() if name.removeprefix("aten::") in KERNELS}
    products = {"hopgemm::_linear": 1, "hopgemm::_linear_backward": 2}
    return sum(named.values()) + sum(products.get(name, 0) * n for name, n in calls.items())


def training_step(layer, x):
    """A forward under autocast with float32 parameters, and its backward."""
    for t in (x, *layer.parameters()):
        t.grad = None
    with torch.autocast("cpu", B16):
        y = layer(x)
    y.backward(torch.ones_like(y))
    return y


# ---- eager ----


@pytest.mark.parametrize("x_dtype", [F32, B16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_fewer_kernels_than_torch(with_bias, x_dtype):
    layer = layer_of_integers(4, 5, bias=with_bias)
    theirs = torch.nn.Linear(4, 5, bias=with_bias)
    x = integers(2, 3, 4, dtype=x_dtype, grad=True)
    calls, torchs = (calls_of(lambda module=module: training_step(module, x)) for module in (layer, theirs))
    casts = 1 + (x_dtype == F32)  # of weight, and of x; none of gradients, none of the bias
    assert calls["hopgemm::_linear"] == calls["hopgemm::_linear_backward"] == 1
    assert calls["aten::_to_copy"] == calls["aten::copy_"] == casts
    assert calls["aten::sum"] == with_bias
    assert not calls["aten::clone"] and not calls["aten::new_empty_strided"]
    assert kernels_of(calls) == 3 + casts + with_bias + 1  # the last: ones_like
    assert kernels_of(calls) < kernels_of(torchs)


def test_one_node_of_autograd():
    layer, x = layer_of_integers(4, 5), integers(2, 3, 4, dtype=F32, grad=True)
    y = training_step(layer, x)
    assert y.grad_fn.name() == "_LinearBackward"
    # No cast: those are there for second derivatives alone, and no gradient comes their way.
    names = [f.name() for f, _ in y.grad_fn.next_functions]
    assert names == ["torch::autograd::AccumulateGrad"] * 3


def test_what_is_saved_is_what_is_multiplied():
    """Not the float32 x too, which would take three times the memory."""
    layer, x, saved = layer_of_integers(4, 5), integers(2, 3, 4, dtype=F32, grad=True), []

    def pack(t):
        saved.append((t.dtype, tuple(t.shape)))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        with torch.autocast("cpu", B16):
            layer(x)
    assert saved == [(B16, (2, 3, 4)), (B16, (4, 5))]


def test_a_weight_is_cast_once_a_region():
    if _torch_library.cached_cast is torch.Tensor.to:
        pytest.skip("this torch does not show its cache of casts")
    layer, x = layer_of_integers(4, 4), integers(3, 4)

    def forward():
        with torch.autocast("cpu", B16):
            return layer(layer(layer(x)))

    assert calls_of(forward)["aten::_to_copy"] == 1
    with torch.no_grad():
        assert calls_of(forward)["aten::_to_copy"] == 1
    with torch.autocast("cpu", B16):  # torch's own layers share it, and get their gradients
        layer(x)
        y = F.linear(x, layer.weight)
    (g,) = torch.autograd.grad(y.sum(), layer.weight)
    assert_same(g, x.detach().float().sum(0).expand(4, 4))


def test_gradients_of_float32_are_not_rounded():
    """A bfloat16 gradient would be 256 for 257."""
    layer = layer_of_integers(257, 257, bias=True)
    torch.nn.init.ones_(layer.weight)
    x = torch.ones(257, 257, requires_grad=True)
    training_step(layer, x)
    for t in (x, *layer.parameters()):
        assert_same(t.grad, torch.full_like(t, 257))


@pytest.mark.parametrize("dtype", [F32, B16])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 0, 4)])
def test_only_what_is_asked_for(shape, dtype):
    """Every choice of operands that want a gradient; of gradients that lie in any way."""
    for needs in itertools.product((False, True), repeat=3):
        ours = [integers(*shape, dtype=dtype), integers(5, 4, dtype=dtype), integers(5, dtype=dtype)]
        wide = [t.double() for t in ours]
        for t, u, need in zip(ours, wide, needs, strict=True):
            t.requires_grad_(need), u.requires_grad_(need)
        with torch.autocast("cpu", B16):
            y = linear(*ours)
        assert y.requires_grad == any(needs)
        for cotangent in (integers(*y.shape), integers(1).expand(y.shape), integers(*y.mT.shape).mT):
            if any(needs):
                wanted = [t for t in ours if t.requires_grad]
                got = torch.autograd.grad(y, wanted, cotangent, retain_graph=True)
                leaves = [u for u in wide if u.requires_grad]
                want = torch.autograd.grad(F.linear(*wide), leaves, cotangent.double())
                for t, g, w in zip(wanted, got, want, strict=True):
                    assert g.dtype == t.dtype
                    assert_same(g, w)


def test_second_derivatives_under_autocast():
    """Through the casts, which no first derivative takes."""
    layer = layer_of_integers(4, 5)
    x, reference = integers(3, 4, dtype=F32, grad=True), twin(layer)
    wide = x.detach().double().requires_grad_()
    for module, t in ((layer, x), (reference, wide)):
        with torch.autocast("cpu", B16):
            y = module(t)
        g, h = torch.autograd.grad((y.to(t.dtype) ** 2).sum(), (t, module.weight), create_graph=True)
        (g.sum() + h.sum()).backward()
    assert_same(x.grad, wide.grad)
    assert_same(layer.weight.grad, reference.weight.grad)


def test_a_transposed_weight_gets_its_gradient_without_a_copy():
    x, weight, bias = integers(3, 4), integers(5, 4, grad=True), integers(5, grad=True)
    for product in (lambda: matmul(x, weight.mT), lambda: matmul(x, weight.mT, bias=bias)):
        weight.grad = None
        assert not calls_of(lambda: product().sum().backward())["aten::new_empty_strided"]
        assert_same(weight.grad, x.double().sum(0).expand(5, 4))


# ---- torch.compile ----


class Block(torch.nn.Module):
    """Two layers with something to fuse before, between and behind them."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(24)
        self.up, self.down = layer_of_integers(24, 40), layer_of_integers(40, 24)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def test_compiled_graphs_call_the_bare_operators():
    """Not `gemm`, whose kernel at the Autograd key is Python, and each of them once."""
    graphs = []

    def keep(graph, _):
        graphs.append(Counter(str(n.target) for n in graph.graph.nodes if n.op == "call_function"))
        return graph

    model = torch.compile(Block(), fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    training_step(model, integers(2, 3, 24, dtype=F32, grad=True))
    forward, backward = graphs
    assert forward["hopgemm._mm_bias.default"] == 2 and backward["hopgemm._mm.default"] == 4
    assert not any(name in (forward | backward) for name in ("hopgemm.gemm.default", "aten.clone.default"))


def test_inductor_copies_no_weight_and_no_gradient():
    model, x = Block(), integers(2, 3, 24, dtype=F32, grad=True)
    compiled = torch.compile(model, fullgraph=True)
    _, (forward, backward) = run_and_get_code(lambda: training_step(compiled, x))

    def buffers(code, dtype):
        """How many buffers as large as a weight, which no other tensor here is."""
        sizes = re.findall(r"= empty_strided\w*\(\((\d+), (\d+)\), \(\d+, \d+\), torch\.(\w+)\)", code)
        return sum(int(m) * int(n) == 24 * 40 and found == dtype for m, n, found in sizes)

    assert (
        buffers(forward, "bfloat16") == 2 and buffers(backward, "bfloat16") == 0
    )  # the casts of the weights
    assert (
        buffers(forward, "float32") == 0 and buffers(backward, "float32") == 2
    )  # the casts of the gradients
    model.zero_grad()
    assert not calls_of(lambda: training_step(compiled, x))["aten::new_empty_strided"]
    assert all(layer.weight.grad.is_contiguous() for layer in (model.up, model.down))


def test_the_short_cut_is_taken(monkeypatch):
    """It gives way in silence to the long one: so that is counted."""
    taken = []
    raw = _torch_linear_eager.raw_linear
    monkeypatch.setattr(_torch_linear_eager, "raw_linear", lambda *args: taken.append(args) or raw(*args))
    layer, x = layer_of_integers(4, 5), integers(3, 4)
    for grad, region in itertools.product((False, True), (B16, torch.float16)):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", region):
            layer(x.float()), layer(x.to(region))
    layer.bfloat16()(x)
    assert len(taken) == 9
    torch.vmap(layer)(x[None])
    assert len(taken) == 9
