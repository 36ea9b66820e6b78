"""What every user of a mesh relies on, once for each kind of axis: Explicit, Auto and Manual (shard_map)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_kernel import BF16, MM, TARGET, W3, X3, W, X, collectives, compiled, hj, loss, mesh, put, same
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import hopgemm

EXPLICIT, AUTO, MANUAL = AxisType.Explicit, AxisType.Auto, AxisType.Manual
KINDS = pytest.mark.parametrize("kind", [EXPLICIT, AUTO, MANUAL], ids=lambda kind: kind.name)

LAYOUTS = {  # lhs, rhs and result; the axes over which K is split
    "row": (P("x", None), P(None, None), P("x", None), ()),
    "column": (P(None, None), P(None, "y"), P(None, "y"), ()),
    "row_column": (P("x", None), P(None, "y"), P("x", "y"), ()),
    "k": (P(None, "y"), P("y", None), P(None, None), ("y",)),
    "k_row": (P("x", "y"), P("y", None), P("x", None), ("y",)),
    "k_two_axes": (P(None, ("x", "y")), P(("x", "y"), None), P(None, None), ("x", "y")),
    "batch": (P("x", None, None), P("x", None, None), P("x", None, None), ()),
    "batch_row": (P("x", "y", None), P("x", None, None), P("x", "y", None), ()),
}


def on(kind, m, lhs, rhs, out, split_k=()):
    """Makes of a matmul the same product of whole arrays on the mesh, written as each kind of axis asks."""
    if kind == AUTO:
        return lambda mm: mm
    if kind == EXPLICIT:
        return lambda mm: functools.partial(mm, out_sharding=out)
    body = lambda mm: (lambda a, b: lax.psum(mm(a, b), split_k)) if split_k else mm
    return lambda mm: jax.shard_map(body(mm), mesh=m, in_specs=(lhs, rhs), out_specs=out)


def mesh_of(kind, *shape_and_names):
    return mesh(AUTO if kind == MANUAL else kind, *shape_and_names)


@KINDS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(kind, layout):
    lhs, rhs, out, split_k = LAYOUTS[layout]
    m = mesh_of(kind)
    with jax.set_mesh(m):
        x, w = (X3, W3) if len(lhs) == 3 else (X, W)
        a, b, f = put(x, m, lhs), put(w, m, rhs), on(kind, m, lhs, rhs, out, split_k)
        program = compiled(f(hj.matmul), a, b)
        same(program, jax.jit(f(jnp.matmul)), a, b, calls=8)
        found, text = collectives(program)
        assert found == ({"all-reduce"} if split_k else set())
        assert f'custom_call_target="{TARGET}"' in text and " dot(" not in text
        g = lambda mm: jax.grad(loss(f(mm)), (0, 1))
        program = compiled(g(hj.matmul), a, b)
        same(program, jax.jit(g(jnp.matmul)), a, b, calls=24)
        assert "all-gather" not in collectives(program)[0]


@KINDS
def test_data_parallel_layers_and_derivatives(kind):
    m = mesh_of(kind, (8,), ("data",))
    with jax.set_mesh(m):
        x, w = put(X, m, P("data", None)), put(W, m, P(None, None))
        f = on(kind, m, P("data", None), P(None, None), P("data", None))
        two_layers = lambda mm: lambda x, w: f(mm)(jax.nn.relu(f(mm)(x, w)), w.T).sum()
        for g in (
            lambda mm: jax.grad(loss(f(mm)), (0, 1)),
            lambda mm: jax.value_and_grad(jax.checkpoint(loss(f(mm))), 1),
            lambda mm: jax.grad(two_layers(mm), 1),
            lambda mm: lambda x, w: jax.jvp(f(mm), (x, w), (x, w)),
            lambda mm: lambda x, w: jax.linearize(f(mm), x, w)[1](x, w),
        ):
            program = compiled(g(hj.matmul), x, w)
            same(program, jax.jit(g(jnp.matmul)), x, w)
            assert "all-gather" not in collectives(program)[0]
        h = lambda mm: jax.jit(jax.hessian(lambda w: loss(f(mm))(x, w)))
        same(h(hj.matmul), h(jnp.matmul), w)


@KINDS
def test_eager(kind):
    m = mesh_of(kind)
    with jax.set_mesh(m):
        a, b = put(X, m, P("x", None)), put(W, m, P(None, "y"))
        f = on(kind, m, P("x", None), P(None, "y"), P("x", "y"))
        same(f(hj.matmul), f(jnp.matmul), a, b, calls=8)


# ---- out_sharding ----------------------------------------------------------------------------------------

SPECS = [
    P(None, None),
    P("x", None),
    P(None, "x"),
    P("x", "y"),
    P(("x", "y"), None),
    P("y", "x"),
    P(None, "y"),
]


def outcome(f, *args):
    """The type that f gives, or the error's type and how it begins."""
    try:
        y = jax.jit(f).trace(*args).out_info
    except Exception as e:
        return type(e).__name__, str(e)[:40] if isinstance(e, ValueError) else ""
    return y.dtype, y.shape, str(y.sharding)


@KINDS
@pytest.mark.parametrize("lhs", SPECS, ids=str)
def test_out_sharding_is_accepted_and_refused_as_by_jax(kind, lhs):
    m = mesh_of(kind)
    dots = [functools.partial(f, dimension_numbers=MM) for f in (hj.dot_general, lax.dot_general)]
    with jax.set_mesh(m):
        for rhs in SPECS if kind == EXPLICIT else SPECS[::3]:
            a, b = put(X, m, lhs), put(W, m, rhs)
            for pair in ((hopgemm.matmul, jnp.matmul), dots):
                for out in (None, P("x", "y"), P(None, "x")):
                    f, g = (inside(kind, m, functools.partial(f, out_sharding=out)) for f in pair)
                    assert outcome(f, a, b) == outcome(g, a, b), (rhs, out)


def inside(kind, m, f):
    if kind != MANUAL:
        return f
    return jax.shard_map(f, mesh=m, in_specs=(P("x", None), P(None, "y")), out_specs=P("x", "y"))


@KINDS
def test_some_of_these_cases_are_refused(kind):
    m = mesh_of(kind)
    with jax.set_mesh(m):
        f = functools.partial(hj.matmul, out_sharding=P("x", "y"))
        if kind != EXPLICIT:  # such axes have no place in an out_sharding
            assert outcome(inside(kind, m, f), X, W)[0] == "ValueError"
            return
        assert outcome(f, X, W)[0] == BF16
        # K is split over x, and no out_sharding says what becomes of the sums.
        assert outcome(hj.matmul, put(X, m, P(None, "x")), put(W, m, P("x", None)))[0] == "ShardingTypeError"


def test_out_sharding_decides_values_too():
    want = np.asarray(X, "f4") @ np.asarray(W, "f4")
    m = mesh(EXPLICIT)
    with jax.set_mesh(m):
        for f, lhs, rhs, out in (
            (hj.matmul, P("x", "y"), P("y", None), P("x", "y")),
            (hj.matmul, P(None, "x"), P("y", None), P(None, "x")),
            (functools.partial(hj.dot_general, dimension_numbers=MM), P("y", "x"), P("x", None), P("x", "y")),
        ):
            y = jax.jit(functools.partial(f, out_sharding=out))(put(X, m, lhs), put(W, m, rhs))
            assert jax.typeof(y).sharding.spec == out
            np.testing.assert_array_equal(np.asarray(y, "f4"), want)
        y = jax.jit(functools.partial(hj.matmul, bias=W[0], alpha=2, out_sharding=P(None, "x")))(X, W)
        assert jax.typeof(y).sharding.spec == P(None, "x")
        np.testing.assert_array_equal(np.asarray(y, "f4"), 2 * want + np.asarray(W[0], "f4"))
