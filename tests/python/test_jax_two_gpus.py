"""hopgemm.jax on two GPUs of one process: XLA's partitioner for CUDA, NCCL, each GPU its own calls."""

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import lax  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from test_jax_gpu import F32, TARGET, assert_bits, exact, integers, optimized  # noqa: E402

import hopgemm.jax as hj  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def two_gpus():
    if jax.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, found {jax.device_count()}")


@pytest.mark.parametrize("layout", ["row", "column", "k"])
@pytest.mark.parametrize("kind", list(AxisType), ids=lambda kind: kind.name)
def test_every_kind_of_axis(kind, layout):
    """Forward and backward: each GPU does its part, and nothing is gathered."""
    lhs, rhs, out = {
        "row": (P("x", None), P(None, None), P("x", None)),
        "column": (P(None, None), P(None, "x"), P(None, "x")),
        "k": (P(None, "x"), P("x", None), P(None, None)),
    }[layout]
    m = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto if kind == AxisType.Manual else kind,))
    with jax.set_mesh(m):
        a, b = (
            jax.device_put(integers(s), NamedSharding(m, spec))
            for s, spec in (((256, 128), lhs), ((128, 192), rhs))
        )
        f = hj.matmul
        if kind == AxisType.Explicit:
            f = functools.partial(hj.matmul, out_sharding=out)
        if kind == AxisType.Manual:
            body = (lambda a, b: lax.psum(hj.matmul(a, b), "x")) if layout == "k" else hj.matmul
            f = jax.shard_map(body, mesh=m, in_specs=(lhs, rhs), out_specs=out)
        text = optimized(f, a, b)
        assert TARGET in text and "all-gather" not in text and ("all-reduce" in text) == (layout == "k")
        want = exact(a, b)
        for _ in range(20):
            assert_bits(jax.jit(f)(a, b), want)
        g = jax.grad(lambda a, b: f(a, b).astype(F32).sum(), (0, 1))
        assert "all-gather" not in optimized(g, a, b)
        ones = np.ones_like(want)
        for got, grad in zip(jax.jit(g)(a, b), (ones @ np.asarray(b, "f4").T, np.asarray(a, "f4").T @ ones)):
            assert_bits(got, grad)


def test_the_second_gpu_runs_its_own_calls():
    for i in (1, 0, 1):
        a, b = (jax.device_put(integers((129, 72), seed=i), jax.devices()[i]) for _ in range(2))
        y = hj.dot_general(a, b, (((1,), (1,)), ((), ())))
        assert y.devices() == {jax.devices()[i]}
        assert_bits(y, exact(a, np.asarray(b, "f4").T))
