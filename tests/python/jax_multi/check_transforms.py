"""jit, grad, jvp, vmap, scan, checkpoint and their compositions, against jnp."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_kernel import A3, B3, BF16, F32, LIB, A, B, cuda_text, hj, last_call, loss, rand, same
from jax import lax

from hopgemm._jax_trace import entry

mm = hj.matmul

TRANSFORMS = {  # name: (transformation of a product, calls of the kernel or None for at least one)
    "eager": (lambda mm: mm, 1),
    "jit": (lambda mm: jax.jit(mm), 1),
    "grad": (lambda mm: jax.grad(loss(mm), (0, 1)), 3),
    "value_and_grad": (lambda mm: jax.value_and_grad(loss(mm), (0, 1)), 3),
    "jit_grad_lhs_only": (lambda mm: jax.jit(jax.grad(loss(mm))), 2),
    "jvp": (lambda mm: lambda a, b: jax.jvp(mm, (a, b), (a + 1, b - 1)), 3),
    "linearize": (lambda mm: lambda a, b: jax.linearize(mm, a, b)[1](a, b), None),
    "vjp_of_jvp": (
        lambda mm: (
            lambda a, b: jax.vjp(lambda a: jax.jvp(loss(mm), (a, b), (b.sum() + a, b))[1], a)[1](BF16(1))
        ),
        None,
    ),
    "jacfwd": (lambda mm: jax.jacfwd(mm, (0, 1)), None),
    "jacrev": (lambda mm: jax.jacrev(mm, (0, 1)), None),
    "hessian": (lambda mm: jax.hessian(loss(mm), (0, 1)), None),
    "hvp": (lambda mm: lambda a, b: jax.jvp(jax.grad(lambda a: loss(mm)(a, b)), (a,), (a,))[1], None),
    "linear_transpose": (lambda mm: lambda a, b: jax.linear_transpose(lambda x: mm(x, b), a)(mm(a, b)), None),
    "scan": (lambda mm: lambda a, b: lax.scan(lambda c, _: (mm(mm(c, b), b.T), mm(c, b)), a, None, 2), None),
    "grad_of_scan": (
        lambda mm: jax.grad(
            lambda a, b: lax.scan(lambda c, _: (mm(mm(c, b), b.T) * 0.125, None), a, None, 2)[0].sum(), (0, 1)
        ),
        None,
    ),
    "while": (
        lambda mm: (
            lambda a, b: lax.while_loop(
                lambda s: s[0] < 3, lambda s: (s[0] + 1, mm(mm(s[1], b), b.T) * 0.125), (0, a)
            )[1]
        ),
        None,
    ),
    "checkpoint": (lambda mm: jax.grad(jax.checkpoint(loss(mm)), (0, 1)), 4),
    "checkpoint_in_scan": (
        lambda mm: jax.grad(
            lambda a, b: lax.scan(jax.checkpoint(lambda c, _: (mm(mm(c, b), b.T) * 0.125, None)), a, None, 2)[
                0
            ].sum(),
            (0, 1),
        ),
        None,
    ),
    "cond_in_grad": (
        lambda mm: jax.grad(
            lambda a, b: lax.cond(a[0, 0] > 9, lambda: a.sum(), lambda: mm(a, b).sum()), (0, 1)
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    f, calls = TRANSFORMS[name]
    same(f(mm), f(jnp.matmul), A, B, calls=calls)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, None), (1, 0)], ids=str)
def test_one_vmap_is_one_call(axes):
    a = {None: A, 0: A3, 1: jnp.moveaxis(A3, 0, 1)}[axes[0]]
    b = {None: B, 0: B3}[axes[1]]
    same(jax.vmap(mm, axes), jax.vmap(jnp.matmul, axes), a, b, calls=1)
    same(jax.vmap(mm, axes, out_axes=2), jax.vmap(jnp.matmul, axes, out_axes=2), a, b)
    for g, calls in (
        (lambda mm: jax.vmap(jax.grad(loss(mm), (0, 1)), axes), None),
        (
            lambda mm: jax.grad(lambda a, b: (jax.vmap(mm, axes)(a, b) ** 2).sum(), (0, 1)),
            2 if axes == (None, 0) else 3,
        ),
    ):  # b alone mapped: a's gradient sums over two dimensions apart
        same(g(mm), g(jnp.matmul), a, b, calls=calls)


@pytest.mark.parametrize("mapped, calls", [((None, 0, 1), 8), ((None, 0, 1, 2), 9)], ids=str)
def test_every_vmap(mapped, calls):
    """Each axis of each operand, or none, and each place of the result."""
    a, b = ([x, *(jnp.moveaxis(x3, 0, axis) for axis in range(3))] for x, x3 in ((A, A3), (B, B3)))
    axes = [(i, j) for i in mapped for j in mapped][1:]
    of = lambda x, axis: x[0 if axis is None else axis + 1]
    f = lambda mm: (
        lambda a, b: [
            jax.vmap(mm, (i, j), out)(of(a, i), of(b, j)) for (i, j), out in zip(axes, 5 * (0, 1, 2))
        ]
    )
    # Six of the last seven are XLA's: a mapped dimension lies innermost, and no strided GEMM is left.
    same(jax.jit(f(mm)), jax.jit(f(jnp.matmul)), a, b, calls=calls)
    if 2 not in mapped:  # XLA's CPU backend lacks some of the products that then are its own
        squares = lambda mm: lambda a, b: sum((y.astype(F32) ** 2).sum() for y in f(mm)(a, b))
        same(*(jax.jit(jax.grad(squares(h), (0, 1))) for h in (mm, jnp.matmul)), a, b)


def test_nested_vmap_and_matmul_batches():
    nest = lambda mm: jax.vmap(jax.vmap(mm, (0, None)), (None, 0))
    same(nest(mm), nest(jnp.matmul), A3, B3, calls=1)
    nest = lambda mm: jax.vmap(jax.vmap(jax.vmap(mm, (None, 0)), (0, None)), (0, 0))
    same(nest(mm), nest(jnp.matmul), rand(2, 5, 8, 4), rand(2, 3, 4, 6))
    for a, b in (
        (rand(2, 5, 8, 4), B),
        (rand(5, 8, 4), rand(2, 1, 4, 6)),
        (A, B3),
        (rand(1, 8, 4), B3),
        (A3, rand(1, 4, 6)),
        (rand(4), B),
        (A, rand(4)),
        (rand(4), rand(4)),
        (A3, rand(4)),
        (rand(4), B3),
    ):
        same(mm, jnp.matmul, a, b, calls=1)


def test_many_batch_dimensions():
    a, b = rand(2, 3, 2, 3, 4, 8), rand(2, 3, 2, 3, 8, 4)
    same(mm, jnp.matmul, a, b, calls=1)  # they follow each other: one run
    same(mm, jnp.matmul, a, rand(3, 8, 4), calls=1)
    same(mm, jnp.matmul, rand(2, 1, 2, 1, 4, 8), rand(1, 3, 1, 3, 8, 4), calls=0)  # four runs: XLA's product


def test_checkpoint_policy_keeps_our_products():
    f = lambda policy: jax.jit(
        jax.grad(jax.checkpoint(lambda a, b: jnp.sin(mm(jnp.sin(mm(a, b)), B.T)).sum(), policy=policy))
    )
    count = lambda policy: str(f(policy).trace(A, B).jaxpr).count("hopgemm[")
    assert count(hj.dots_saveable) < count(jax.checkpoint_policies.dots_saveable)
    same(f(hj.dots_saveable), f(None), A, B)


NO_BATCH = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


@pytest.mark.parametrize("policy", [NO_BATCH, jax.checkpoint_policies.dots_saveable], ids=str)
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_any_checkpoint_policy_takes_our_products_for_jaxs(policy, batch):
    """As many products are computed again as with jnp.matmul."""

    def products(mm, name, policy):
        f = jax.checkpoint(lambda a, b: jnp.sin(mm(jnp.sin(mm(a, b)), b.mT)).sum(), policy=policy)
        text = str(jax.jit(jax.grad(f, argnums=(0, 1))).trace(a, b).jaxpr)
        return text.count(f"{name}[")

    a, b = rand(*batch, 8, 4), rand(*batch, 4, 8)
    theirs = products(jnp.matmul, "dot_general", policy)
    assert products(mm, "hopgemm", hj.checkpoint_policy(policy)) == theirs
    if policy is NO_BATCH and not batch:
        assert products(mm, "hopgemm", policy) > theirs
    bias = jnp.ones(8, BF16)
    f = lambda policy: jax.grad(
        jax.checkpoint(lambda a, b: jnp.sin(mm(a, b, bias=bias)).sum(), policy=policy)
    )
    same(f(hj.checkpoint_policy(policy)), f(None), a, b)


@pytest.mark.parametrize("donated", [0, 1, (0, 1, 2)], ids=str)
def test_donation(donated):
    """The result may lie where an operand was, but no operand is overwritten while it is read."""
    f = lambda c, a, b: c + mm(a, b)
    plain, donating = jax.jit(f), jax.jit(f, donate_argnums=donated)
    for i in range(20):
        args = [jnp.asarray(np.random.default_rng([i, j]).integers(-1, 2, (8, 8)), BF16) for j in range(3)]
        want = np.asarray(plain(*args), "f4")
        given = [x + 0 for x in args]
        np.testing.assert_array_equal(np.asarray(donating(*given), "f4"), want)
        assert any(x.is_deleted() for x in given)


def test_operands_that_xla_would_lay_out_otherwise():
    cases = {
        "transposed": lambda mm: lambda a, b: mm(a.T, b.T),
        "result": lambda mm: lambda a, b: mm(b.T, a.T).T + 1,
        "slices": lambda mm: lambda a, b: mm(a[1:4, 1:], b[1:, ::2]),
        "in_scan": lambda mm: (
            lambda a, b: lax.scan(lambda c, _: (mm(mm(c, b.T), a.T) * 0.125, None), a.T, None, 2)[0]
        ),
    }
    for f in cases.values():
        same(jax.jit(f(mm)), jax.jit(f(jnp.matmul)), rand(8, 4), rand(4, 8))


def test_loops_inside_vmap_and_pmap():
    loop = lambda mm: lambda a, b: lax.fori_loop(0, 3, lambda i, c: mm(c, b) * 0.25, a)
    a, b = rand(8, 4, 6), rand(6, 6)
    same(jax.vmap(loop(mm), (0, None)), jax.vmap(loop(jnp.matmul), (0, None)), a, b, calls=3)
    same(jax.pmap(loop(mm), in_axes=(0, None)), jax.pmap(loop(jnp.matmul), in_axes=(0, None)), a, b, calls=24)


def test_disable_jit_and_x64():
    with jax.disable_jit():
        same(mm, jnp.matmul, A, B, calls=1)
    with jax.enable_x64(True):
        same(jax.grad(loss(mm), (0, 1)), jax.grad(loss(jnp.matmul), (0, 1)), A, B)
        same(
            functools.partial(mm, bias=jnp.zeros(6, F32), alpha=2),
            lambda a, b: jnp.matmul(a, b) * 2,
            A,
            B,
            calls=1,
        )


def test_eager_calls_trace_once():
    numbers = (((1,), (0,)), ((), ()))
    hj.dot_general(A, B, numbers)
    mm(A, B)
    entries = entry.cache_info().currsize
    hj.dot_general(A + 1, B, [[(1,), [0]], ([], [])])
    mm(A, B + 1)
    assert entry.cache_info().currsize == entries


def test_calls_with_one_program_give_the_same_bits():
    f = jax.jit(mm)
    before = LIB.host_calls()
    results = {np.asarray(f(A, B)).tobytes() for _ in range(50)}
    assert len(results) == 1 and LIB.host_calls() - before == 50


# ---- shapes and types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes", [((0, 4), (4, 6)), ((3, 0), (0, 6)), ((3, 4), (4, 0)), ((0, 3, 4), (0, 4, 5))], ids=str
)
def test_empty_operands(shapes):
    args = [jnp.zeros(s, BF16) for s in shapes]
    same(mm, jnp.matmul, *args, calls=0)
    same(jax.grad(loss(mm), (0, 1)), jax.grad(loss(jnp.matmul), (0, 1)), *args, calls=0)
    assert "stablehlo" in cuda_text(mm, *args)


@pytest.mark.parametrize("dtype", [BF16, jnp.float16])
@pytest.mark.parametrize("out_dtype", [None, F32])
def test_result_types(dtype, out_dtype):
    a, b = A.astype(dtype), B.astype(dtype)
    ours, theirs = (
        functools.partial(mm, out_dtype=out_dtype),
        functools.partial(jnp.matmul, preferred_element_type=out_dtype),
    )
    same(ours, theirs, a, b, calls=1)
    same(
        jax.jit(jax.vmap(ours, (0, None))),
        jax.jit(jax.vmap(theirs, (0, None))),
        jnp.stack([a, a]),
        b,
        calls=1,
    )
    g = lambda mm: jax.grad(lambda a, b: (mm(a, b).astype(F32) ** 2).sum(), (0, 1))
    same(g(ours), g(theirs), a, b, calls=3)


def test_fp32_cotangent_is_rounded_once():
    rng = np.random.default_rng(1)
    a, b, g = (
        jnp.asarray(rng.standard_normal(s), t) for s, t in (((16, 8), BF16), ((8, 32), BF16), ((16, 32), F32))
    )
    f = functools.partial(mm, out_dtype=F32)
    rounded = np.asarray(g.astype(BF16), "f8")
    da, db = jax.vjp(f, a, b)[1](g)
    for got, exact in ((da, rounded @ np.asarray(b, "f8").T), (db, np.asarray(a, "f8").T @ rounded)):
        assert got.dtype == BF16
        assert np.all(np.abs(np.asarray(got, "f8") - exact) <= np.abs(exact) * 2.0**-8 + 1e-5)


def test_fp32_gradients_of_a_bf16_product():
    rng = np.random.default_rng(2)
    x, w = jnp.asarray(rng.standard_normal((16, 8)), BF16), jnp.asarray(rng.standard_normal((8, 32)), F32)
    product = hj.dot_general_with(compute_dtype=BF16)
    f = lambda x, w: product(x, w, (((1,), (0,)), ((), ())), preferred_element_type=F32)
    y, vjp = jax.vjp(f, x, w)
    np.testing.assert_allclose(
        y, np.asarray(x, "f8") @ np.asarray(w.astype(BF16), "f8"), rtol=1e-5, atol=1e-5
    )
    g = jnp.asarray(rng.standard_normal((16, 32)), F32)
    dx, dw = vjp(g)
    assert y.dtype == F32 and dx.dtype == BF16 and dw.dtype == F32
    np.testing.assert_allclose(
        dw, np.asarray(x, "f8").T @ np.asarray(g.astype(BF16), "f8"), rtol=1e-5, atol=1e-5
    )


def test_odd_sizes_come_with_workspace():
    a, b = rand(7, 5), rand(5, 3)
    same(mm, jnp.matmul, a, b, calls=1)
    assert int(last_call()["workspace_bytes"]) > 0
    same(mm, jnp.matmul, rand(16, 8), rand(8, 24), calls=1)
    assert int(last_call()["workspace_bytes"]) == 0
