"""hopgemm.torch.Linear, override_model and weight.main_grad on a Hopper GPU."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import DTYPES, capture  # noqa: E402
from torch_layer_cases import (  # noqa: E402
    assert_gradients,
    assert_same,
    block_of_integers,
    integers,
    layer_of_integers,
    twin,
)

from hopgemm.torch import override_model  # noqa: E402

pytestmark = pytest.mark.gpu
settled, products = torch_cases.settled, torch_cases.products


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    "shape, n", [((256, 512), 1024), ((2, 3, 65), 33), ((128,), 256), ((2,) * 8 + (64,), 8)]
)
def test_exact_forward_and_gradients(products, shape, n, with_bias, dtype):
    layer = layer_of_integers(shape[-1], n, bias=with_bias, dtype=dtype, device="cuda")
    x = integers(*shape, dtype=dtype, device="cuda", grad=True)
    reference, wide = twin(layer), x.detach().cpu().double().requires_grad_()
    got, want = layer(x), reference(wide)
    assert_same(got, want)
    cotangent = integers(*got.shape, dtype=dtype, device="cuda")
    got.backward(cotangent), want.backward(cotangent.cpu().double())
    assert_same(x.grad, wide.grad)
    assert_gradients(layer, reference)
    assert len(products) == 1


def test_runs_our_kernel_forward_and_backward():
    layer = layer_of_integers(64, 128, dtype=torch.bfloat16, device="cuda")
    x = integers(256, 64, device="cuda", grad=True)
    layer(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        layer(x).sum().backward()
        torch.cuda.synchronize()
    kernels = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert sum("hopgemm::instances::" in k for k in kernels) == 3, kernels
    assert not [k for k in kernels if any(theirs in k for theirs in ("nvjet", "cutlass", "cublas"))]


@pytest.mark.parametrize("region", [None, torch.bfloat16])
def test_autocast_and_float32(products, region):
    layer, x = layer_of_integers(64, 128, device="cuda"), integers(32, 64, dtype=torch.float32, device="cuda")
    reference = twin(layer)
    with torch.autocast("cuda", dtype=region, enabled=region is not None):
        got = layer(x)
    assert got.dtype == (region or torch.float32) and len(products) == (region is not None)
    want = reference(x.double().cpu())
    assert_same(got, want)
    got.sum().backward(), want.sum().backward()
    assert_gradients(layer, reference)


def test_compile_and_graph():
    layer = layer_of_integers(64, 128, dtype=torch.bfloat16, device="cuda")
    x = integers(32, 64, device="cuda")
    want = twin(layer)(x.double().cpu())
    assert_same(torch.compile(layer, fullgraph=True)(x), want)
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        layer(x)
        with capture(graph):
            y = layer(x)
        y.fill_(float("nan"))
        graph.replay()
    assert_same(y, want)


def test_exact_training_step(products):
    model = block_of_integers(dtype=torch.bfloat16)
    want, x = copy.deepcopy(model).double(), integers(3, 4, low=-1, high=1)
    override_model(model.cuda())
    got, reference = model(x.cuda()), want(x.double())
    assert torch.equal(got.cpu().double(), reference) and len(products) == 4
    got.sum().backward(), reference.sum().backward()
    for name, p in want.named_parameters():
        if p.grad is not None:
            assert torch.equal(model.get_parameter(name).grad.cpu().double(), p.grad), name


def test_main_grad(products):
    layer = layer_of_integers(64, 128, dtype=torch.bfloat16, device="cuda")
    layer.weight.main_grad = torch.ones(128, 64, device="cuda")
    x = integers(2, 32, 64, device="cuda", grad=True)
    reference, wide = twin(layer), x.detach().cpu().double().requires_grad_()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        layer(x).sum().backward()
        torch.cuda.synchronize()
    reference(wide).sum().backward()
    assert layer.weight.grad is None
    assert_same(layer.weight.main_grad, reference.weight.grad + 1)
    assert_same(x.grad, wide.grad)
    assert_same(layer.bias.grad, reference.bias.grad)
    names = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert sum("hopgemm::instances::" in name for name in names) == 3, names  # forward, x, the accumulation


def test_main_grad_in_a_graph():
    """The buffer is written in place, so that a replay accumulates once more."""
    layer = layer_of_integers(64, 128, dtype=torch.bfloat16, device="cuda")
    layer.weight.main_grad = torch.zeros(128, 64, device="cuda")
    x, cotangent = integers(32, 64, device="cuda"), integers(32, 128, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layer(x).backward(cotangent)
    torch.cuda.current_stream().wait_stream(side)
    layer.bias.grad = None
    layer.weight.main_grad.zero_()
    graph = torch.cuda.CUDAGraph()
    with capture(graph, "global"):  # backward runs on a thread of its own
        layer(x).backward(cotangent)
    for times in (1, 2, 3):
        graph.replay()
        assert_same(layer.weight.main_grad, times * (cotangent.double().mT @ x.double()))
