"""hopgemm's context managers under jit: entering one retraces, and nothing stale is ever run."""

import threading

import jax
import jax.numpy as jnp
import pytest
from host_kernel import F32, LIB, A, B, hj, last_call
from jax import lax

import hopgemm

BLOCKS = {
    "sm_limit": (lambda: hopgemm.sm_limit(8), "0", "8"),
    "batch_invariant": (lambda: hopgemm.batch_invariant(), "0", "1"),
}
FUNCTIONS = {
    "eager": hj.matmul,
    "jit": jax.jit(hj.matmul),
    "jit_of_scan": jax.jit(lambda a, b: lax.scan(lambda c, _: (c, hj.matmul(a, b)), a, None, 2)[1][0]),
    "jit_of_jit": jax.jit(lambda a, b: jax.jit(lambda a, b: hj.matmul(a, b))(a, b)),
    "grad": jax.jit(jax.grad(lambda a, b: hj.matmul(a, b).astype(F32).sum())),
    "vmap": jax.jit(jax.vmap(hj.matmul, (None, 0), axis_size=1)),
    "epilogue": jax.jit(lambda a, b: hj.matmul(a, b, alpha=2)),
}


def seen(f, name):
    """The attribute `name` of the call that f makes."""
    before = LIB.host_calls()
    jax.block_until_ready(f(A, B if f is not FUNCTIONS["vmap"] else B[None]))
    assert LIB.host_calls() > before
    return last_call()[name]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", BLOCKS)
def test_one_function_outside_and_inside(name, function):
    block, outside, inside = BLOCKS[name]
    f = FUNCTIONS[function]
    assert seen(f, name) == outside
    with block():
        assert seen(f, name) == inside
        assert seen(f, name) == inside
    assert seen(f, name) == outside


def test_traced_inside_first():
    f = jax.jit(lambda a, b: hj.matmul(a, b))
    with hopgemm.sm_limit(4):
        assert seen(f, "sm_limit") == "4"
        with hopgemm.sm_limit(2):
            assert seen(f, "sm_limit") == "2"
        assert seen(f, "sm_limit") == "4"
    assert seen(f, "sm_limit") == "0"


def test_the_same_value_does_not_retrace():
    traces = []
    f = jax.jit(lambda a, b: (traces.append(1), hj.matmul(a, b))[1])
    for _ in range(3):
        with hopgemm.sm_limit(8):
            f(A, B)
    assert len(traces) == 1


def test_arguments_win_over_blocks():
    with hopgemm.sm_limit(8), hopgemm.batch_invariant():
        assert seen(lambda a, b: hj.matmul(a, b, sm_limit=0), "sm_limit") == "0"
        assert seen(lambda a, b: hj.matmul(a, b, batch_invariant=False), "batch_invariant") == "0"


def test_backward_keeps_what_its_forward_was_traced_with():
    with hopgemm.sm_limit(8):
        _, vjp = jax.vjp(hj.matmul, A, B)
    vjp(jnp.ones((8, 6), A.dtype))
    assert last_call()["sm_limit"] == "8"


def test_blocks_hold_for_one_thread():
    f = jax.jit(lambda a, b: hj.matmul(a, b))
    found = []
    with hopgemm.sm_limit(8):
        thread = threading.Thread(target=lambda: found.append(seen(f, "sm_limit")))
        thread.start()
        thread.join()
        assert found == ["0"] and seen(f, "sm_limit") == "8"
