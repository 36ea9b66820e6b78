"""Derivatives of hopgemm.torch.matmul: both modes, both orders, torch.func.

On CPU; `test_torch_cpp.py` runs this file again. The data are small integers and the functions polynomials,
so that every derivative is an integer that float16 holds: the comparisons with float64 are exact.
"""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import enable_reentrant_dispatch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import hopgemm.torch  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402

OP = torch.ops.hopgemm.gemm.default
SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
]
VECTORS = [((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,))]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def integers(*shape, grad=False, dtype=torch.float16):
    return torch.randint(-2, 3, shape).to(dtype).requires_grad_(grad)


def doubles(tensors):
    return [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]


def reference(a, b, c=None, bias=None, alpha=1.0, beta=0.0):
    d = alpha * torch.matmul(a, b)
    d = d if c is None else d + beta * c
    return d if bias is None else d + bias


def call(a, b, c=None, bias=None, alpha=1.0, beta=0.0):
    return matmul(a, b, c=c, bias=bias, alpha=alpha, beta=beta)


def assert_exact(got, want):
    """Pytrees of tensors: ours in 16 bits or fp32, theirs in fp64."""
    got, want = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want)
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape and x.dtype != torch.float64
        assert torch.equal(x.double(), y), (x.double() - y).abs().max()


# ---- reverse mode ----


@pytest.mark.parametrize("f", [call, OP], ids=["matmul", "operator"])
@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_gradients_of_every_argument(f, shape_a, shape_b):
    shape = torch.matmul(torch.empty(shape_a), torch.empty(shape_b)).shape
    for mask in range(1, 16):
        for c_shape in (shape, shape[-2:], (1, 5)):
            needs = [bool(mask >> i & 1) for i in range(4)]
            shapes = (shape_a, shape_b, c_shape, (5,))
            ours = [integers(*s, grad=n) for s, n in zip(shapes, needs, strict=True)]
            theirs = doubles(ours)
            wanted = [t for t in ours if t.requires_grad], [t for t in theirs if t.requires_grad]
            w = integers(*shape)
            got = torch.autograd.grad(f(*ours, 2.0, 0.5), wanted[0], w)
            assert_exact(got, torch.autograd.grad(reference(*theirs, 2.0, 0.5), wanted[1], w.double()))
            assert [g.dtype for g in got] == [torch.float16] * len(got)
            if not mask & 4:
                continue
            zero = torch.autograd.grad(f(*ours, 2.0, 0.0), wanted[0], w)[needs[0] + needs[1]]
            assert not zero.any() and zero.shape == torch.Size(c_shape)


@pytest.mark.parametrize("shape_a, shape_b", SHAPES + VECTORS)
def test_two_operands_in_every_need(shape_a, shape_b):
    for need_a, need_b in ((True, False), (False, True), (True, True)):
        a, b = integers(*shape_a, grad=need_a), integers(*shape_b, grad=need_b)
        x, y = doubles((a, b))
        matmul(a, b).square().sum().backward()
        torch.matmul(x, y).square().sum().backward()
        for ours, theirs in ((a, x), (b, y)):
            assert (ours.grad is None) == (theirs.grad is None)
            if ours.grad is not None:
                assert_exact(ours.grad, theirs.grad)


COTANGENTS = {
    "sum": lambda d: d.sum(),
    "transposed": lambda d: (d.mT * torch.arange(d.shape[-2], dtype=d.dtype)).sum(),
    "every_second": lambda d: (d[..., ::2] * 2).sum(),
    "batch_first_only": lambda d: d[:1].sum() if d.dim() > 2 else d[0].sum(),
    "zero_size": lambda d: d[..., :0].sum() + d.sum(),
}


@pytest.mark.parametrize("cotangent", COTANGENTS)
@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_layouts_of_cotangents(cotangent, shape_a, shape_b):
    for view in (
        lambda t: t,
        lambda t: t.mT.contiguous().mT,
        lambda t: torch.nn.functional.pad(t, (0, 3))[..., :-3],
    ):
        leaves = integers(*shape_a, grad=True), integers(*shape_b, grad=True)
        theirs = doubles(leaves)
        a, b = (view(t) for t in leaves)
        loss = COTANGENTS[cotangent]
        got = torch.autograd.grad(loss(matmul(a, b)), leaves)
        assert_exact(got, torch.autograd.grad(loss(torch.matmul(*theirs)), theirs))


@pytest.mark.parametrize("shape_a, shape_b", SHAPES + VECTORS)
def test_second_order(shape_a, shape_b):
    ours = integers(*shape_a, grad=True), integers(*shape_b, grad=True)
    theirs = doubles(ours)

    def second(f, tensors):
        first = torch.autograd.grad(f(*tensors).square().sum(), tensors, create_graph=True)
        return torch.autograd.grad([g.sum() for g in first], tensors)

    got = second(lambda a, b: matmul(a, b, out_dtype=torch.float32), ours)
    assert [g.dtype for g in got] == [torch.float16] * 2
    want = second(torch.matmul, theirs)
    if max(w.abs().max() for w in want) < 2048:
        assert_exact(got, want)
    else:
        torch.testing.assert_close([g.double() for g in got], list(want), rtol=2**-10, atol=4)


def test_fp32_cotangent_is_rounded_once():
    a, b = integers(3, 4, grad=True, dtype=torch.bfloat16), integers(4, 5, grad=True, dtype=torch.bfloat16)
    d = matmul(a, b, out_dtype=torch.float32)
    assert d.dtype == torch.float32
    g = torch.full((3, 5), 257.0)  # not a bfloat16: 256 is the nearest
    grad_a, grad_b = torch.autograd.grad(d, (a, b), g)
    assert grad_a.dtype == grad_b.dtype == torch.bfloat16
    assert torch.equal(grad_a, (256 * torch.ones(3, 5) @ b.detach().float().mT).bfloat16())


def test_gradients_of_c_and_bias_are_summed_in_fp32():
    rows = 3000  # 16-bit sums would stop at 256 in bfloat16
    a, b = torch.zeros(rows, 1).bfloat16(), torch.zeros(1, 2).bfloat16()
    for dtype in (torch.bfloat16, torch.float32):
        c, bias = (
            torch.zeros(1, 2, dtype=dtype, requires_grad=True),
            torch.zeros(2, dtype=dtype, requires_grad=True),
        )
        matmul(a, b, c=c, beta=2.0, bias=bias).backward(torch.ones(rows, 2).bfloat16())
        assert c.grad.dtype == bias.grad.dtype == dtype
        assert torch.equal(c.grad, torch.full((1, 2), 2.0 * rows).to(dtype))
        assert torch.equal(bias.grad, torch.full((2,), float(rows)).to(dtype))


def test_shared_weight_gradient_is_one_product():
    """A weight under a batch: its gradient sums over the batch in fp32, not product by product in 16 bits."""
    a, b = torch.ones(300, 1, 4).bfloat16(), torch.ones(4, 2).bfloat16().requires_grad_()
    for layout in (a, a.mT.contiguous().mT, torch.ones(300, 2, 4).bfloat16()[:, ::2]):
        b.grad = None
        (matmul(layout, b) * torch.ones(300, 1, 2).bfloat16()).sum().backward()
        assert torch.equal(b.grad, torch.full((4, 2), 300.0).bfloat16())


def test_backward_keeps_settings_but_not_the_config(monkeypatch):
    calls = []
    original = hopgemm._torch_autograd.product

    def record(*args, **options):
        calls.append(options)
        return original(*args, **options)

    a, b = integers(3, 4, grad=True), integers(4, 5, grad=True)
    d = matmul(a, b, sm_limit=5, batch_invariant=True, alpha=2.0)
    monkeypatch.setattr(hopgemm._torch_autograd, "product", record)
    d.sum().backward()
    assert calls == [{"alpha": 2.0, "sm_limit": 5, "batch_invariant": True}] * 2


def test_only_needed_operands_are_saved():
    x, w = integers(3, 4), integers(4, 5, grad=True)
    for d in (matmul(x, w), matmul(x, w, alpha=2.0), OP(x, w)):
        saved = d.grad_fn.saved_tensors
        assert saved[0] is not None and saved[1] is None


def test_no_grad_and_checkpoint():
    a, b = integers(3, 4, grad=True), integers(4, 3, grad=True)
    with torch.no_grad():
        assert not matmul(a, b).requires_grad and not OP(a, b).requires_grad
    want = torch.autograd.grad(matmul(matmul(a, b), a).sum(), (a, b))
    for reentrant in (True, False):
        y = torch.utils.checkpoint.checkpoint(
            lambda a, b: matmul(matmul(a, b), a), a, b, use_reentrant=reentrant
        )
        a.grad = b.grad = None
        y.sum().backward()
        assert torch.equal(a.grad, want[0]) and torch.equal(b.grad, want[1])


def test_autocast_gradients_have_the_leaves_dtypes():
    for da, db in ((torch.float32, torch.float32), (torch.float32, torch.bfloat16)):
        a, b = integers(3, 4, grad=True, dtype=da), integers(4, 5, grad=True, dtype=db)
        bias = integers(5, grad=True, dtype=torch.float32)
        for f in (lambda: matmul(a, b), lambda: OP(a, b), lambda: matmul(a, b, bias=bias)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                d = f()
                inside = torch.autograd.grad(d.sum(), (a, b), retain_graph=True)
            outside = torch.autograd.grad(d.sum(), (a, b))
            for grads in (inside, outside):
                assert d.dtype == torch.bfloat16 and [g.dtype for g in grads] == [da, db]
                assert torch.equal(grads[0].double(), torch.ones(3, 5).double() @ b.detach().double().mT)


def test_backward_in_a_region_of_another_dtype():
    """The products are of the forward's dtype: 2**17 is no float16."""
    a, b = integers(3, 4, grad=True, dtype=torch.float32), integers(4, 5, grad=True, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        d = matmul(a, b)
        assert d.dtype == torch.bfloat16
    g = torch.full((3, 5), 2.0**17)
    with torch.autocast("cpu", torch.float16):
        got = torch.autograd.grad(d, (a, b), g.bfloat16())
    want = g @ b.detach().mT, a.detach().mT @ g
    assert [t.dtype for t in got] == [torch.float32] * 2
    assert_exact(got, [t.double() for t in want])


@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3)))
def test_no_product_whose_gradient_nobody_wants(needs):
    leaves = [integers(*s, grad=n) for s, n in zip(((3, 4), (4, 5), (5,)), needs, strict=True)]
    for bias in (None, leaves[2]):
        d = matmul(*leaves[:2], bias=bias)
        assert d.requires_grad == any(needs[: 2 + (bias is not None)])
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            if d.requires_grad:
                d.sum().backward()
        names = [event.name for event in profile.events() if "hopgemm::" in event.name]
        products = sum(2 if "_backward" in name else 1 for name in names)
        assert products == sum(needs[:2]), names


# ---- forward mode ----


@pytest.mark.parametrize("f", [call, OP], ids=["matmul", "operator"])
@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_forward_mode(f, shape_a, shape_b):
    shapes = shape_a, shape_b, torch.matmul(torch.empty(shape_a), torch.empty(shape_b)).shape[-2:], (5,)
    for mask in range(1, 16):
        primals, tangents = [integers(*s) for s in shapes], [integers(*s) for s in shapes]

        def jvp(f, primals, tangents, mask=mask):
            with forward_ad.dual_level():
                pairs = zip(primals, tangents, strict=True)
                duals = [forward_ad.make_dual(p, t) if mask >> i & 1 else p for i, (p, t) in enumerate(pairs)]
                return forward_ad.unpack_dual(f(*duals, 2.0, 0.5)).tangent

        assert_exact(jvp(f, primals, tangents), jvp(reference, doubles(primals), doubles(tangents)))


def test_forward_mode_of_vectors():
    for shape_a, shape_b in VECTORS:
        args = (integers(*shape_a), integers(*shape_b)), (integers(*shape_a), integers(*shape_b))
        want = torch.func.jvp(torch.matmul, *(tuple(doubles(t)) for t in args))
        assert_exact(torch.func.jvp(matmul, *args), want)


# ---- torch.func ----


@pytest.mark.parametrize("f", [call, OP], ids=["matmul", "operator"])
@pytest.mark.parametrize("shape_a, shape_b", SHAPES[:5])
def test_vmap_over_every_argument(f, shape_a, shape_b):
    shape = torch.matmul(torch.empty(shape_a), torch.empty(shape_b)).shape
    for mask in range(1, 16):
        dims = tuple(0 if mask >> i & 1 else None for i in range(4))
        shapes = (shape_a, shape_b, shape, (5,))
        ours = [integers(*((3,) if d == 0 else ()), *s) for s, d in zip(shapes, dims, strict=True)]
        got = torch.vmap(lambda *t: f(*t, 2.0, 0.5), in_dims=dims)(*ours)
        assert_exact(got, torch.vmap(lambda *t: reference(*t, 2.0, 0.5), in_dims=dims)(*doubles(ours)))


@pytest.mark.parametrize("f", [matmul, OP], ids=["matmul", "operator"])
def test_vmap_dims_and_nesting(f):
    a, b = integers(3, 4, 2), integers(4, 2, 5)
    x, y = doubles((a, b))
    dims = {"in_dims": (2, 1), "out_dims": 1}
    assert_exact(torch.vmap(f, **dims)(a, b), torch.vmap(torch.matmul, **dims)(x, y))
    a, b = integers(2, 3, 4), integers(6, 4, 5)
    x, y = doubles((a, b))
    for outer, inner in itertools.permutations(((0, None), (None, 0))):
        got = torch.vmap(torch.vmap(f, inner), outer)(a, b)
        assert_exact(got, torch.vmap(torch.vmap(torch.matmul, inner), outer)(x, y))
    assert torch.vmap(f, (0, None))(integers(0, 3, 4), integers(4, 5)).shape == (0, 3, 5)
    assert torch.vmap(f, (0, None))(integers(1, 3, 4), integers(4, 5)).shape == (1, 3, 5)


def test_vmap_of_vectors():
    for (shape_a, shape_b), dims in itertools.product(VECTORS, ((0, None), (None, 0), (0, 0))):
        tensors = [
            integers(*((3,) if d == 0 else ()), *s) for s, d in zip((shape_a, shape_b), dims, strict=True)
        ]
        got, want = torch.vmap(matmul, dims)(*tensors), torch.vmap(torch.matmul, dims)(*doubles(tensors))
        assert_exact(got, want)


def test_a_batch_of_a_alone_is_one_product_with_the_same_b():
    seen = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op.namespace == "hopgemm":
                seen.append((args[0].shape, args[1].shape, args[1].data_ptr()))
            assert not any(word in str(op) for word in ("copy", "clone")), op
            return op(*args, **(kwargs or {}))

    a, b = integers(6, 3, 4), integers(4, 5)
    twice = torch.vmap(torch.vmap(matmul, (0, None)), (0, None))
    for f, x in ((torch.vmap(matmul, (0, None)), a), (twice, integers(2, 6, 3, 4))):
        seen.clear()
        with Seen():
            d = f(x, b)
        assert seen == [(x.shape, b.shape, b.data_ptr())]
        assert_exact(d, x.double() @ b.double())


def square_sum(f):
    return lambda a, b: f(a, b).square().sum()


@pytest.mark.parametrize("f", [matmul, OP], ids=["matmul", "operator"])
def test_compositions(f):
    from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

    a, b, batch = integers(2, 3), integers(3, 2), integers(4, 2, 3)
    x, y, z = doubles((a, b, batch))
    ours, theirs = square_sum(f), square_sum(torch.matmul)

    for transform in (
        lambda g: lambda a, b, batch: grad(g, (0, 1))(a, b),
        lambda g: lambda a, b, batch: vmap(grad(g, 1), (0, None))(batch, b),
        lambda g: lambda a, b, batch: grad(lambda t: vmap(g, (0, None))(t, b).sum())(batch),
        lambda g: lambda a, b, batch: jvp(g, (a, b), (b.mT, a.mT)),
        lambda g: lambda a, b, batch: hessian(g, (0, 1))(a, b),
        lambda g: lambda a, b, batch: jacrev(jacrev(g, 1), 0)(a, b),
        lambda g: lambda a, b, batch: jacfwd(jacfwd(g, 1), 0)(a, b),
        lambda g: lambda a, b, batch: jacrev(jacfwd(g, 1), 0)(a, b),
        lambda g: lambda a, b, batch: vmap(lambda t: jvp(lambda s: g(s, b), (t,), (t,))[1])(batch),
    ):
        assert_exact(transform(ours)(a, b, batch), transform(theirs)(x, y, z))
    for jacobian in (jacrev, jacfwd):
        assert_exact(jacobian(f, 1)(a, b), jacobian(torch.matmul, 1)(x, y))


def test_a_dispatch_mode_may_bring_tensors_that_want_gradients():
    """As LoRA by a mode: no operand of the call requires grad, its result does."""
    a, b, w = integers(3, 4), integers(4, 5), integers(4, 5, grad=True)

    class Adapter(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if function not in (torch.ops.aten.mm.default, OP):
                return function(*args, **kwargs)
            with enable_reentrant_dispatch():
                return function(args[0], args[1] + w, *args[2:], **kwargs)

    for f in (torch.mm, matmul, OP):
        with Adapter():
            d = f(a, b)
        (got,) = torch.autograd.grad(d.float().sum(), w)
        assert_exact(got, a.double().mT @ torch.ones(3, 5).double())


@pytest.mark.parametrize("f", [matmul, OP], ids=["matmul", "operator"])
def test_outer_gradient_through_vmap(f):
    # The batched tensor says requires_grad False, yet the outer level wants its gradient.
    batch, w = integers(6, 3, 4), integers(4, 5, grad=True)
    (z, v) = doubles((batch, w))
    got = torch.autograd.grad(torch.vmap(lambda x: f(x, w))(batch).sum(), w)
    assert_exact(got, torch.autograd.grad((z @ v).sum(), v))


def test_autocast_under_transforms():
    a, b = integers(2, 3, 4, dtype=torch.float32), integers(4, 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.vmap(lambda a: matmul(a, b))(a).dtype == torch.bfloat16
        assert torch.func.grad(lambda a: matmul(a, b).float().sum())(a[0]).dtype == torch.float32
