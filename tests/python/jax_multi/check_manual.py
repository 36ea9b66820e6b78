"""Manual mesh axes: shard_map with and without check_vma, over all axes of a mesh and over some."""

import jax
import jax.numpy as jnp
import pytest
from host_kernel import BF16, F32, W, X, collectives, compiled, cuda_text, hj, loss, mesh, put, rand, same
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mm = hj.matmul


@pytest.fixture(params=[AxisType.Explicit, AxisType.Auto], ids=lambda kind: kind.name)
def m(request):
    m = mesh(request.param)
    with jax.set_mesh(m):
        yield m


BODIES = {
    "local": (lambda mm: mm, (P("x", None), P(None, "y")), P("x", "y")),
    "psum": (lambda mm: lambda a, b: lax.psum(mm(a, b), "x"), (P(None, "x"), P("x", None)), P(None, None)),
    "psum_scatter": (
        lambda mm: lambda a, b: lax.psum_scatter(mm(a, b), "x", tiled=True),
        (P(None, "x"), P("x", None)),
        P("x", None),
    ),
}


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_shard_map(m, name, vma):
    body, ins, outs = BODIES[name]
    f, g = (
        jax.jit(jax.shard_map(body(x), mesh=m, in_specs=ins, out_specs=outs, check_vma=vma))
        for x in (mm, jnp.matmul)
    )
    a, b = put(X, m, ins[0]), put(W, m, ins[1])
    same(f, g, a, b)
    same(*[jax.jit(jax.grad(lambda a, b, h=h: (h(a, b) ** 2).sum(), (0, 1))) for h in (f, g)], a, b)
    same(*[lambda a, b, h=h: jax.jvp(h, (a, b), (a, b)) for h in (f, g)], a, b)
    assert "all-gather" not in collectives(compiled(f, a, b))[0]


@pytest.mark.parametrize("vma", [True, False])
def test_gradient_inside(m, vma):
    def inner(mm):
        def f(a, b):  # b does not vary over x: with check_vma jax casts it and sums its gradient
            ga, gb = jax.grad(loss(mm), (0, 1))(a, b)
            return ga, gb if vma else lax.psum(gb, "x")

        specs = (P("x", None), P(None, None))
        return jax.jit(jax.shard_map(f, mesh=m, in_specs=specs, out_specs=specs, check_vma=vma))

    same(inner(mm), inner(jnp.matmul), put(X, m, P("x", None)), put(W, m, P(None, None)))


@pytest.mark.parametrize("vma", [True, False])
def test_epilogue_is_fused(m, vma):
    specs = (P("x", None), P(None, "y"), P("y"), P("x", "y"))
    smap = lambda f: jax.jit(jax.shard_map(f, mesh=m, in_specs=specs, out_specs=P("x", "y"), check_vma=vma))
    f = smap(lambda a, b, bias, c: mm(a, b, bias=bias, c=c, alpha=2, beta=-1))
    g = smap(lambda a, b, bias, c: (2 * jnp.matmul(a, b, preferred_element_type=F32) - c + bias).astype(BF16))
    args = [put(x, m, s) for x, s in zip((X, W, rand(12), rand(16, 12)), specs)]
    same(f, g, *args, calls=8)
    assert 'epilogue = "c=ac,bias=c"' in cuda_text(f, *args)
    s = lambda f: jax.jit(jax.grad(lambda *x: f(*x).astype(F32).sum(), (0, 1, 2, 3)))
    same(s(f), s(g), *args)


def test_over_some_axes(m):
    a, b = put(X, m, P("x", None)), put(W, m, P(None, "y"))
    calls = 0 if AxisType.Auto in m.axis_types else None  # the rest Auto: XLA's product
    f = lambda mm: jax.jit(
        jax.shard_map(
            mm, mesh=m, in_specs=(P("x", None), P(None, None)), out_specs=P("x", None), axis_names={"x"}
        )
    )
    same(f(mm), f(jnp.matmul), a, b, calls=calls)
    # b varies in fp32: XLA:CPU aborts on the bf16 all-reduce that JAX makes of its gradient otherwise,
    # without us too
    inner = lambda mm: lambda a, b: mm(a, lax.pcast(b, ("x",), to="varying").astype(BF16)).astype(F32)
    g = lambda mm: jax.jit(jax.grad(lambda a, b: (f(inner(mm))(a, b) ** 2).sum(), (0, 1)))
    same(g(mm), g(jnp.matmul), a, b.astype(F32), calls=calls)
    e = lambda mm: jax.jit(
        jax.shard_map(
            lambda a, b: mm(a, b).astype(F32),
            mesh=m,
            axis_names={"x"},
            in_specs=(P("x", None), P(None, None)),
            out_specs=P("x", None),
        )
    )
    same(e(lambda a, b: mm(a, b, alpha=2)), e(lambda a, b: jnp.matmul(a, b) * 2), a, b, calls=calls)


def test_types_inside():
    m, seen = mesh(AxisType.Explicit), {hj: [], jnp: []}
    with jax.set_mesh(m):
        for module, types in seen.items():

            def f(a, b, module=module, types=types):
                types.append(str(jax.typeof(module.matmul(a, b))))
                types.append(str(jax.typeof(module.matmul(b, b.T))))
                return a

            for ins in [
                (P("x", None), P(None, None)),
                (P("x", None), P(None, "y")),
                (P(None, None), P(None, None)),
            ]:
                jax.jit(jax.shard_map(f, mesh=m, in_specs=ins, out_specs=ins[0])).trace(
                    put(X, m, ins[0]), put(W, m, ins[1])
                )
    assert seen[hj] == seen[jnp] and len(seen[hj]) == 6
