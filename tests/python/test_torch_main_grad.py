"""linear() and Linear with weight.main_grad: the gradient is added in float32 to a buffer that exists."""

import functools

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
import torch_cases  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_cases import DTYPES, assert_same, raises  # noqa: E402

from hopgemm.torch import Linear, linear, override_model  # noqa: E402

fresh = torch_cases.fresh
integers = functools.partial(torch_cases.integers, low=-2, high=2)


def parameter(*shape, dtype=torch.bfloat16, start=0.0):
    p = torch.nn.Parameter(integers(*shape, dtype=dtype))
    p.main_grad = torch.full(shape, start)
    return p


def reference(x, weight, bias, cotangent):
    """The gradients of F.linear in float64."""
    leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    F.linear(*leaves).backward(cotangent.double())
    return [t.grad for t in leaves]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (0, 4), (2,) * 8 + (4,), (0,), (3, 0), (2, 3, 0)])
@pytest.mark.parametrize("n", [5, 0])
def test_values_of_every_rank(n, shape, dtype):
    x, weight = integers(*shape, dtype=dtype, grad=True), parameter(n, shape[-1], dtype=dtype)
    bias = integers(n)
    bias = bias.to(dtype).requires_grad_()
    y = linear(x, weight, bias)
    assert_same(y.detach(), F.linear(x.double(), weight.double(), bias.double()).to(dtype).detach())
    cotangent = integers(*y.shape, dtype=dtype)
    want = reference(x, weight, bias, cotangent)
    y.backward(cotangent)
    assert weight.grad is None
    assert_same(weight.main_grad, want[1].float())
    assert_same(x.grad, want[0].to(dtype))
    assert_same(bias.grad, want[2].to(dtype))


def test_sums_are_not_rounded():
    """A bfloat16 gradient would be 256 for 257, and each addition would round again."""
    weight = parameter(1, 1, start=0.25)
    x = torch.ones(257, 1).bfloat16()
    for _ in range(3):
        linear(x, weight).sum().backward()
    assert weight.main_grad.item() == 3 * 257 + 0.25


def test_second_backward_and_a_new_buffer():
    x, weight = integers(3, 4), parameter(5, 4)
    y = linear(x, weight).sum()
    want = x.float().sum(0).expand(5, 4).contiguous()
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    assert_same(weight.main_grad, 2 * want)
    first, weight.main_grad = weight.main_grad, torch.ones(5, 4)  # the backward looks for it when it runs
    y.backward()
    assert_same(weight.main_grad, want + 1)
    assert_same(first, 2 * want)


@pytest.mark.parametrize("needs", [(x, w, b) for x in (0, 1) for w in (0, 1) for b in (0, 1)])
def test_what_needs_no_gradient_gets_none(needs):
    x, weight, bias = integers(3, 4), parameter(5, 4), integers(5)
    for t, need in zip((x, weight, bias), needs, strict=True):
        t.requires_grad_(bool(need))
    y = linear(x, weight, bias)
    assert y.requires_grad == any(needs)
    if any(needs):
        want = reference(x, weight, bias, torch.ones(3, 5))
        y.sum().backward()
        for t, need, grad in ((x, needs[0], want[0]), (bias, needs[2], want[2])):
            assert (t.grad is not None) == bool(need)
            if need:
                assert_same(t.grad, grad.bfloat16())
        assert_same(weight.main_grad, want[1].float() if needs[1] else torch.zeros(5, 4))
    assert weight.grad is None


def test_only_what_a_backward_asks_for():
    """As weight.grad: not with inputs that are others, and autograd.grad of the weight is refused."""
    x, weight = integers(3, 4, grad=True), parameter(5, 4)
    want = x.detach().float().sum(0).expand(5, 4).contiguous()
    (grad_x,) = torch.autograd.grad(linear(x, weight).sum(), x)
    linear(x, weight).sum().backward(inputs=[x])
    assert_same(x.grad, grad_x)
    assert not weight.main_grad.any()
    with raises(RuntimeError, "autograd.grad asks for the gradient of a weight", "Call backward"):
        torch.autograd.grad(linear(x, weight).sum(), weight)
    assert not weight.main_grad.any()
    linear(x, weight).sum().backward(inputs=[weight])
    assert_same(weight.main_grad, want)
    linear(x, weight).sum().backward()
    assert_same(weight.main_grad, 2 * want)
    assert_same(x.grad, 2 * grad_x)
    assert weight.grad is None


def test_without_grad_mode_nothing_is_recorded():
    weight = parameter(5, 4)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not linear(integers(3, 4), weight).requires_grad
    assert not weight.main_grad.any()


def test_autocast_of_a_float32_weight():
    x, weight = integers(2, 3, 4, dtype=torch.float32, grad=True), parameter(5, 4, dtype=torch.float32)
    bias = integers(5, dtype=torch.float32, grad=True)
    for inside in (False, True):
        for t in (x, bias):
            t.grad = None
        weight.main_grad.zero_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(x, weight, bias)
            if inside:
                y.sum().backward()
        assert y.dtype == torch.bfloat16
        if not inside:
            y.sum().backward()
        want = reference(x, weight, bias, torch.ones(2, 3, 5))
        for got, grad in zip((x.grad, weight.main_grad, bias.grad), want, strict=True):
            assert_same(got, grad.float())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_accumulates_once(reentrant):
    layer = Linear(4, 4, bias=False, dtype=torch.bfloat16)
    layer.weight.main_grad = torch.zeros(4, 4)
    x = integers(3, 4, grad=True)
    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    assert_same(layer.weight.main_grad, x.detach().float().sum(0).expand(4, 4).contiguous())


def test_a_model_and_its_optimizer_step():
    model = override_model(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).bfloat16())
    for p in model.parameters():
        if p.dim() == 2:
            p.main_grad = torch.zeros_like(p, dtype=torch.float32)
    model(integers(3, 4)).float().square().sum().backward()
    for layer in model:
        assert layer.weight.grad is None and layer.weight.main_grad.any() and layer.bias.grad is not None


def test_hooks_see_no_gradient():
    """As linear() documents: a hook that reduces gradients has nothing to reduce."""
    weight, seen = parameter(5, 4), []
    weight.register_hook(seen.append)
    linear(integers(3, 4), weight).sum().backward()
    assert seen == [None] and weight.grad is None


def test_a_compiled_call_is_refused_or_runs_eagerly():
    x, weight = integers(3, 4), parameter(5, 4)
    with pytest.raises(Exception, match="weight.main_grad is written by eager code only"):
        torch.compile(linear, backend="eager", fullgraph=True)(x, weight)
    torch._dynamo.reset()
    torch.compile(lambda x, w: linear(x, w) * 1, backend="eager")(x, weight).sum().backward()
    assert_same(weight.main_grad, x.float().sum(0).expand(5, 4).contiguous())
    assert weight.grad is None


def test_transforms_and_second_derivatives_are_refused():
    x, weight = integers(3, 4, grad=True), parameter(5, 4)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda t: linear(t, weight).sum())(x.detach())
    (g,) = torch.autograd.grad(linear(x, weight).float().square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_refusals():
    x, weight = integers(3, 4), torch.nn.Parameter(integers(5, 4))
    weight.main_grad = [0.0]
    with raises(TypeError, "weight.main_grad is a list", "float32 tensor"):
        linear(x, weight)
    for wrong in (
        torch.zeros(5, 4).bfloat16(),
        torch.zeros(5, 4, device="meta"),
        torch.zeros(5, 4).to_sparse(),
    ):
        weight.main_grad = wrong
        with raises(TypeError, "weight.main_grad is", "must be float32, dense and on weight's device"):
            linear(x, weight)
    weight.main_grad = torch.zeros(4, 5)
    with raises(
        ValueError, "weight.main_grad is .*4, 5.*, and weight is|main_grad is .*weight is", "one shape"
    ):
        linear(x, weight)
    weight.main_grad = torch.zeros(5, 4)
    for left_to_torch in (x.float(), x[:, :3], [1.0]):
        with raises(
            TypeError, "x is .* and weight has a main_grad", "left to torch", "delete weight.main_grad"
        ):
            linear(left_to_torch, weight)
    computed = weight * 1
    computed.main_grad = torch.zeros(5, 4)
    with raises(TypeError, "weight a Tensor, the result of an operation", "must be a leaf"):
        linear(x, computed)
    y = linear(x, weight).sum()
    del weight.main_grad
    with raises(TypeError, "main_grad is a NoneType", "end of the backward"):
        y.backward()
