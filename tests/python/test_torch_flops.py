"""torch.utils.flop_counter counts our products as it counts torch's own."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import hopgemm  # noqa: E402
import hopgemm.torch  # noqa: E402


def flops(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def ones(*shape, grad=False):
    return torch.ones(*shape, dtype=torch.bfloat16, requires_grad=grad)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((2, 3, 4), (4, 5))],
    ids=str,
)
@pytest.mark.parametrize("grad", [False, True])
def test_matmul(a, b, grad):
    def run(product):
        y = product(ones(*a, grad=grad), ones(*b, grad=grad))
        if grad:
            y.sum().backward()

    assert flops(lambda: run(hopgemm.matmul)) == flops(lambda: run(torch.matmul)) > 0


def test_options():
    a, b, c = ones(3, 4), ones(4, 5), ones(3, 5)
    one = 2 * 3 * 4 * 5
    assert flops(lambda: hopgemm.matmul(a, b, bias=ones(5))) == one
    assert flops(lambda: hopgemm.matmul(a, b, c=c, beta=2.0, alpha=0.5, out_dtype=torch.float32)) == one
    assert flops(lambda: hopgemm.matmul(a, b, out=c)) == one
    assert flops(lambda: hopgemm.matmul(a, b, c=c, beta=1.0, out=c)) == one
    assert flops(lambda: hopgemm.matmul(a, b[:, 0])) == 2 * 3 * 4


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_linear(shape, bias):
    def run(layer):
        layer = layer(4, 5, bias=bias, dtype=torch.bfloat16)
        layer(ones(*shape, grad=True)).sum().backward()

    assert flops(lambda: run(hopgemm.torch.Linear)) == flops(lambda: run(torch.nn.Linear)) > 0
