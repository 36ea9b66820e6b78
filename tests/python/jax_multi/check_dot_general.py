"""dot_general: lax's signature, refusals, precisions; what it leaves to XLA, and that `plan` says so."""

import functools
import inspect

import jax
import jax.numpy as jnp
import pytest
from host_kernel import BF16, F32, MM, A, B, W, X, hj, mesh, put, rand, same
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import hopgemm

F16 = jnp.float16
PRESET = lax.DotAlgorithmPreset


def parameters(f):
    return [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]


def test_it_has_exactly_the_signature_of_lax():
    assert parameters(hj.dot_general) == parameters(lax.dot_general)
    assert parameters(hj.dot_general_with(batch_invariant=True)) == parameters(lax.dot_general)


def test_equal_options_are_one_function():
    assert hj.dot_general_with(compute_dtype=BF16) is hj.dot_general_with(compute_dtype=BF16)
    assert hj.dot_general_with(sm_limit=8) is not hj.dot_general_with(sm_limit=16)
    for options in (dict(sm_limit=-1), dict(batch_invariant=1), dict(config=3)):
        with pytest.raises((TypeError, ValueError), match=next(iter(options))):
            hj.dot_general_with(**options)


def test_einsum_takes_it():
    f = lambda dot: lambda a, b: jnp.einsum("abc,cd->abd", a, b, _dot_general=dot)
    same(f(hj.dot_general), f(lax.dot_general), rand(5, 8, 4), B, calls=1)


def test_it_refuses_what_lax_refuses():
    def refusal(f, *args):
        with pytest.raises(Exception) as e:
            f(*args)
        return e.type

    for args in (
        (A, B, (((1,), (1,)), ((), ()))),
        (A, B, (((0, 1), (0,)), ((), ()))),
        (A, A, (((0,), (0,)), ((1,), (0,)))),
    ):
        assert refusal(hj.dot_general, *args) == refusal(lax.dot_general, *args)


# ---- by whom ---------------------------------------------------------------------------------------------


def algorithm(types, sums, passes=1):
    return lax.DotAlgorithm(types, types, sums, 1, 1, passes, False)


PRECISIONS = {  # precision: the operand types whose product the kernel computes
    None: (BF16, F16),
    "default": (BF16, F16),
    lax.Precision.DEFAULT: (BF16, F16),
    (lax.Precision.DEFAULT,) * 2: (BF16, F16),
    PRESET.DEFAULT: (BF16, F16),
    PRESET.BF16_BF16_F32: (BF16,),
    PRESET.F16_F16_F32: (F16,),
    algorithm(BF16, F32): (BF16,),
    algorithm(F16, F32): (F16,),
    "highest": (),
    lax.Precision.HIGH: (),
    (lax.Precision.DEFAULT, lax.Precision.HIGHEST): (),
    PRESET.BF16_BF16_F32_X3: (),
    PRESET.BF16_BF16_BF16: (),
    PRESET.F16_F16_F16: (),
    PRESET.F32_F32_F32: (),
    algorithm(BF16, F32, passes=3): (),
    algorithm(BF16, BF16): (),
}


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_precisions(precision, dtype):
    f = functools.partial(hj.dot_general, dimension_numbers=MM, precision=precision)
    (product,) = hj.plan(f, A.astype(dtype), B.astype(dtype))
    taken = dtype in PRECISIONS[precision]
    assert product.by == ("kernel" if taken else "xla")
    assert ("precision is" in product.reason) != taken
    if taken:
        a, b = A.astype(dtype), B.astype(dtype)
        same(f, functools.partial(lax.dot_general, dimension_numbers=MM), a, b, calls=1)


TO_XLA = {  # operands, dimension numbers, options; why
    "float32": (A.astype(F32), B.astype(F32), MM, {}, "operands are float32 and float32"),
    "int": (A.astype(jnp.int32), B.astype(jnp.int32), MM, {}, "operands are int32 and int32"),
    "two types": (A, B.astype(jnp.int8), MM, {}, "operands are bfloat16 and int8"),
    "result": (A, B, MM, {"preferred_element_type": F16}, "the result is float16"),
    "k round m": (rand(3, 8, 4), rand(3, 4, 6), (((0, 2), (0, 1)), ((), ())), {}, "without a copy"),
    "no k": (A, B, (((), ()), ((), ())), {}, "without a copy"),
    "inner batch": (rand(8, 4), rand(6, 4), (((), ()), ((1,), (1,))), {}, "without a copy"),
    "empty": (A[:0], B, MM, {}, "a dimension is 0"),
}


@pytest.mark.parametrize("name", TO_XLA)
def test_the_rest_is_xlas_and_plan_says_why(name):
    a, b, numbers, options, why = TO_XLA[name]
    f, g = (
        functools.partial(f, dimension_numbers=numbers, **options) for f in (hj.dot_general, lax.dot_general)
    )
    same(f, g, a, b, calls=0)
    (product,) = hj.plan(f, a, b)
    assert product.by == "xla" and why in product.reason and product.plan is None


# ---- plan ------------------------------------------------------------------------------------------------


def test_plan_lists_every_product_of_a_program():
    x, w = rand(128, 64), rand(64, 256)

    def f(x, w):
        y = jax.checkpoint(lambda x, w: hj.matmul(x, w, bias=w[0], alpha=2.0))(x, w)
        z = lax.scan(lambda c, _: (hj.dot_general(c, w, (((1,), (1,)), ((), ()))) @ w, None), y, None, 3)[0]
        return lax.cond(z[0, 0] > 0, lambda: z.sum(), lambda: hj.matmul(x, w).astype(F32).sum().astype(BF16))

    found = hj.plan(jax.jit(f), x, w)
    assert [p.spec for p in found] == ["ab,bc->ac", "ab,cb->ac", "ab,bc->ac", "ab,bc->ac"]
    assert [p.by for p in found] == ["kernel", "kernel", "xla", "kernel"]
    assert "not by hopgemm" in found[2].reason
    assert found[0].plan == hopgemm.plan(x, w, bias=True, alpha=2.0)
    (zero,) = hj.plan(lambda x, w: hj.matmul(x, w, alpha=0.0), x, w)
    assert zero.plan == hopgemm.plan(x, w, alpha=0.0) and zero.plan.path == "fill"
    assert found[0].operands == "bfloat16[128,64] bfloat16[64,256]" and found[0].plan.config in str(found[0])
    backward = hj.plan(jax.grad(lambda x: hj.matmul(x, w).astype(F32).sum()), x)
    assert [(p.spec, p.by) for p in backward] == [("ab,bc->ac", "kernel"), ("ab,cb->ac", "kernel")]


def test_plan_follows_target_options_and_shapes():
    x, w = rand(128, 64), rand(64, 256)
    named = hj.plan(hj.matmul, x, w)[0].plan.config.partition("+")[0]
    assert hj.plan(functools.partial(hj.matmul, config=named), x, w)[0].reason == "asked for by name"
    with hopgemm.sm_limit(2):
        assert hj.plan(hj.matmul, x, w)[0].plan.grid <= 2
    (m,) = jax.export.symbolic_shape("m")
    (product,) = hj.plan(hj.matmul, jax.ShapeDtypeStruct((m, 64), BF16), w)
    assert product.by == "kernel" and product.plan is None and "symbolic" in product.reason


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=lambda kind: kind.name)
def test_plan_of_sharded_operands(kind):
    m = mesh(kind)
    with jax.set_mesh(m):
        x, w = put(X, m, P("x", None)), put(W, m, P(None, "y"))
        (product,) = hj.plan(hj.matmul, x, w)
        assert product.by == "kernel" and product.plan is None and "each device" in product.reason
        smap = lambda **kwargs: jax.shard_map(
            hj.matmul, mesh=m, in_specs=(P("x", None), P()), out_specs=P("x", None), **kwargs
        )
        (local,) = hj.plan(smap(), x, W)
        assert local.by == "kernel" and local.operands.startswith("bfloat16[8,8]") and local.plan is not None
        (some,) = hj.plan(smap(axis_names={"x"}), x, W)
        assert (some.by, "Name all axes" in some.reason) == (
            ("xla", True) if kind == AxisType.Auto else ("kernel", False)
        )


def test_plan_of_an_epilogue_on_several_devices():
    m = mesh(AxisType.Auto)
    with jax.set_mesh(m):
        x, w = put(X, m, P("x", None)), put(W, m, P(None, "y"))
        (product,) = hj.plan(lambda x, w: hj.matmul(x, w, bias=w[0], alpha=2), x, w)
    assert product.by == "kernel" and product.reason.endswith("; alpha, c and bias are XLA's")
