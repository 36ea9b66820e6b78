"""hopgemm.torch.matmul under FakeTensor, torch.compile, torch.export; opcheck of every operator. On CPU."""

import functools
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import hopgemm  # noqa: E402
import hopgemm.torch  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402

OPS = torch.ops.hopgemm


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def integers(*shape, grad=False, dtype=torch.bfloat16):
    return torch.randint(-2, 3, shape).to(dtype).requires_grad_(grad)


def assert_same(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_importing_it_does_not_import_dynamo():
    """Which takes seconds that a program without torch.compile need not pay."""
    code = (
        "import sys, torch\nbefore = 'torch._dynamo' in sys.modules\nimport hopgemm.torch\n"
        "hopgemm.matmul(*[torch.ones(2, 2).bfloat16()] * 2)\nprint(before, 'torch._dynamo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"


# ---- opcheck: schema, fake, autograd registration, AOT dispatch ----

LAYOUTS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT,
    "sliced": lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2],
    "expanded": lambda t: t[..., :1, :].expand(t.shape),
    "misaligned": lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape),
}
SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((1, 4), (4, 1)),
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck_gemm(layout, grad):
    for shape_a, shape_b in SHAPES[:1] if layout != "plain" else SHAPES:
        a, b = (LAYOUTS[layout](integers(*s)).detach().requires_grad_(grad) for s in (shape_a, shape_b))
        torch.library.opcheck(OPS.gemm.default, (a, b))


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck_all_arguments(grad):
    a, b, c, bias = (
        integers(2, 3, 4, grad=grad),
        integers(4, 5, grad=grad),
        integers(3, 5, grad=grad),
        integers(5),
    )
    torch.library.opcheck(OPS.gemm.default, (a, b, c, bias, 2.0, 0.5))
    options = (torch.float32, "", 3, True)
    c, bias = c.detach().float().requires_grad_(grad), bias.float().requires_grad_(grad)
    torch.library.opcheck(OPS.gemm.default, (a, b, c, bias, 2.0, 0.5, *options))


def test_opcheck_other_operators():
    a, b, out = integers(3, 4), integers(4, 5), integers(3, 5)
    torch.library.opcheck(OPS.gemm_out.default, (out, a, b, None, integers(5), 1.0, 1.0))
    torch.library.opcheck(OPS.gemm_out.default, (out, a, b, integers(3, 5), None, 2.0, 0.5))
    torch.library.opcheck(OPS._gemm.default, (a, b, out, None, 1.0, 1.0, torch.bfloat16))
    for x, y in ((a, b), (integers(2, 3, 4), b), (integers(2, 3, 4), integers(2, 4, 5))):
        torch.library.opcheck(OPS._mm.default, (x, y))
        torch.library.opcheck(OPS._mm_bias.default, (x, y, integers(5)))
        torch.library.opcheck(OPS._mm_out.default, (torch.matmul(x, y), x, y))
        torch.library.opcheck(OPS._mm_backward.default, (torch.matmul(x, y), x, y))
    torch.library.opcheck(OPS._mm_backward.default, (torch.matmul(a, b), a, b.mT.contiguous().mT))
    for x, bias in ((a, None), (a, integers(5)), (integers(2, 3, 4), integers(5).float())):
        torch.library.opcheck(OPS._linear.default, (x, b.mT, bias))
        for wide in ((False, False), (False, True), (True, False)):
            torch.library.opcheck(OPS._linear_backward.default, (torch.matmul(x, b), x, b.mT, *wide))


# ---- fake tensors need no GPU ----


def test_fake_tensors():
    with FakeTensorMode():
        a, b = torch.empty(2, 3, 4, dtype=torch.bfloat16), torch.empty(4, 5, dtype=torch.bfloat16)
        d = matmul(a, b, out_dtype=torch.float32)
        assert d.shape == (2, 3, 5) and d.dtype == torch.float32
        assert matmul(a[0, 0], b).shape == (5,)
        with pytest.raises(TypeError, match="supported: bfloat16, float16"):
            matmul(a.float(), b.float())
        with pytest.raises(ValueError, match="last dimension of a"):
            matmul(a, b.mT)


def test_fake_cuda_tensors_without_a_gpu():
    with FakeTensorMode():
        a = torch.empty(3, 4, device="cuda", dtype=torch.float16)
        b = torch.empty(4, 5, device="cuda", dtype=torch.float16)
        d = matmul(a, b)
        assert d.device.type == "cuda" and d.shape == (3, 5)


# ---- torch.compile ----


def step(x, w, bias):
    y = matmul(x, w, bias=bias, out_dtype=torch.float32).relu().bfloat16()
    return matmul(y, w.mT).float().sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dynamic_shapes_and_gradients(backend):
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=backend)
    for m in (3, 5, 8):
        args = integers(m, 4, grad=True), integers(4, 6, grad=True), integers(6, grad=True)
        assert_same(torch.autograd.grad(compiled(*args), args), torch.autograd.grad(step(*args), args))
    with torch.no_grad():
        assert_same(compiled(*args), step(*args))


def test_few_compilations():
    counter = CompileCounter()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    for m in (7, 2, 64, 3, 1, 0, 65):
        args = integers(m, 4), integers(4, 6), integers(6)
        assert_same(compiled(*args), step(*args))
    assert counter.frame_count <= 3  # 0 and 1 may each have their own


@pytest.mark.parametrize("marked", [False, True])
def test_few_compilations_while_every_size_varies(marked):
    counter = CompileCounter()
    gelu = lambda x, w: torch.nn.functional.gelu(matmul(x, w))
    compiled = torch.compile(gelu, fullgraph=True, dynamic=None if marked else True, backend=counter)
    sizes = [(m, 40, 24) for m in (1, 2, 0, 3, 7, 64, 65, 1000, 1)]
    sizes += [(7, 40, n) for n in (6, 25, 64)] + [(7, k, 24) for k in (6, 41, 128)]
    for m, k, n in sizes:
        x, w = integers(m, k), integers(k, n)
        for t, dim in ((x, 0), (x, 1), (w, 0), (w, 1)) if marked else ():
            if t.shape[dim] > 1:
                torch._dynamo.mark_dynamic(t, dim)
        assert_same(compiled(x, w), gelu(x, w))
    assert counter.frame_count <= 3


@pytest.mark.parametrize(
    "shape_a, shape_b", [((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,))]
)
def test_compiled_vectors(shape_a, shape_b):
    args = integers(*shape_a, grad=True), integers(*shape_b, grad=True)
    compiled = torch.compile(lambda a, b: matmul(a, b).sum(), fullgraph=True, backend="aot_eager")
    assert_same(torch.autograd.grad(compiled(*args), args), torch.autograd.grad(matmul(*args).sum(), args))


def test_compiled_out():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def accumulate(buffer, strided, g, x):
        matmul(g.mT, x, out=buffer, c=buffer, beta=1.0)
        matmul(g.mT, x, out=strided[:, ::2])
        return buffer.sum()

    buffer, g, x = integers(5, 4, dtype=torch.float32), integers(3, 5), integers(3, 4)
    strided = torch.full((5, 8), -77.0)
    want = buffer + g.float().mT @ x.float()
    assert accumulate(buffer, strided, g, x) == want.sum()
    assert_same(buffer, want)
    assert_same(strided[:, ::2], g.float().mT @ x.float())
    assert (strided[:, 1::2] == -77).all()


def test_compiled_autocast_checkpoint_and_func():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def cast(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return matmul(x, w)

    x, w = integers(3, 4, grad=True, dtype=torch.float32), integers(4, 5, grad=True, dtype=torch.float32)
    d = cast(x, w)
    assert d.dtype == torch.bfloat16
    d.sum().backward()
    assert x.grad.dtype == torch.float32

    def remat(x, w):
        return torch.utils.checkpoint.checkpoint(
            lambda x, w: matmul(x, w).relu(), x, w, use_reentrant=False
        ).sum()

    args = integers(3, 4, grad=True), integers(4, 5, grad=True)
    compiled = torch.compile(remat, fullgraph=True, backend="aot_eager")
    assert_same(torch.autograd.grad(compiled(*args), args), torch.autograd.grad(remat(*args), args))

    batch, a, b = integers(6, 3, 4), integers(3, 4), integers(4, 5)
    mapped = torch.compile(
        lambda t: torch.vmap(lambda x: matmul(x, b))(t), fullgraph=True, backend="aot_eager"
    )
    assert_same(mapped(batch), matmul(batch, b))
    loss = torch.func.grad(lambda x: matmul(x, b).square().sum())
    assert_same(torch.compile(loss, fullgraph=True, backend="aot_eager")(a), loss(a))


def squares(f):
    return lambda a, b: f(a, b).square().sum()


A3, B3 = (5, 3, 4), (5, 4, 6)
MAPPED = {  # of f: what torch.func makes of it, and the shapes of a and b
    "a": (lambda f: torch.vmap(f, (0, None)), A3, B3[1:]),
    "b": (lambda f: torch.vmap(f, (None, 0)), A3[1:], B3),
    "both": (lambda f: torch.vmap(f, (0, 0)), A3, B3),
    "other dimensions": (lambda f: torch.vmap(f, (1, 2), out_dims=1), (3, 5, 4), (4, 6, 5)),
    "nested": (lambda f: torch.vmap(torch.vmap(f, (0, None)), (None, 0)), A3, B3),
    "none": (lambda f: torch.vmap(f, (0, None)), (0, 3, 4), B3[1:]),
    "one": (lambda f: torch.vmap(f, (0, None)), (1, 3, 4), B3[1:]),
    "vmap of grad": (lambda f: torch.vmap(torch.func.grad(squares(f), (0, 1)), (0, None)), A3, B3[1:]),
    "grad of vmap": (lambda f: torch.func.grad(squares(torch.vmap(f, (0, None))), (0, 1)), A3, B3[1:]),
    "jacrev": (lambda f: torch.func.jacrev(f, (0, 1)), A3[1:], B3[1:]),
    # Of one argument: torch 2.11 itself cannot trace jacfwd of two.
    "jacfwd": (lambda f: torch.func.jacfwd(f, 1), A3[1:], B3[1:]),
    "jvp": (lambda f: lambda a, b: torch.func.jvp(f, (a, b), (b.mT, a.mT)), (3, 4), (4, 3)),
    "jvp of one": (lambda f: lambda a, b: torch.func.jvp(lambda t: f(t, b), (a,), (a,)), A3[1:], B3[1:]),
    "vmap of jvp": (
        lambda f: lambda a, b: torch.vmap(lambda t: torch.func.jvp(lambda s: f(s, b), (t,), (t,)))(a),
        A3,
        B3[1:],
    ),
    "grad of jvp": (
        lambda f: torch.func.grad(lambda a, b: torch.func.jvp(squares(f), (a, b), (a, b))[1], (0, 1)),
        A3[1:],
        B3[1:],
    ),
    "hessian": (lambda f: torch.func.hessian(squares(f), 1), (2, 3), (3, 2)),
}


# "eager" runs the levels of the transforms at each call, "aot_eager" while tracing.
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", MAPPED)
def test_compiled_transforms(name, backend):
    transform, *shapes = MAPPED[name]
    args = [integers(*shape, dtype=torch.float16) for shape in shapes]
    compiled = torch.compile(lambda *t: transform(matmul)(*t), fullgraph=True, backend=backend)
    got, want = compiled(*args), transform(torch.matmul)(*(t.double() for t in args))
    leaves = torch.utils._pytree.tree_leaves
    for x, y in zip(leaves(got), leaves(want), strict=True):
        assert_same(x, y.half())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_mode_inside_compiled_code(backend):
    def run(a, b, c, bias):
        with forward_ad.dual_level():
            a, c, bias = (forward_ad.make_dual(t, t) for t in (a, c, bias))
            return tuple(forward_ad.unpack_dual(matmul(a, b, c=c, bias=bias, alpha=2.0, beta=3.0)))

    a, b, c, bias = integers(3, 4), integers(4, 5), integers(3, 5), integers(5)
    primal, tangent = torch.compile(run, fullgraph=True, backend=backend)(a, b, c, bias)
    want = (2 * a.float() @ b.float() + 3 * c + bias).bfloat16()
    assert_same(primal, want)
    assert_same(tangent, want)  # linear in what varies


@pytest.mark.parametrize("save", [True, False])
def test_compiled_checkpoint_policy_sees_the_public_operator(save):
    def policy(ctx, op, *args, **kwargs):
        saved = save and op is OPS.gemm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    def remat(x, w):
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(lambda x, w: matmul(x, w).sin(), x, w, use_reentrant=False, context_fn=contexts)

    graphs = []

    def keep(graph, _):
        graphs.append(sum("hopgemm" in str(n.target) for n in graph.graph.nodes))
        return graph

    backend = aot_autograd(
        fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition
    )
    args = integers(3, 4, grad=True), integers(4, 5, grad=True)
    compiled = torch.compile(remat, fullgraph=True, backend=backend)
    got = torch.autograd.grad(compiled(*args).sum(), args)
    assert graphs == [1, 2 if save else 3]  # in forward; in backward
    for g, want in zip(got, torch.autograd.grad(remat(*args).sum(), args), strict=True):
        assert_same(g, want)


def test_only_operators_without_a_config_have_flexible_strides():
    """Inductor may hand those other strides than were traced, for which a config need not be."""
    for name in ("gemm", "_gemm", "_mm", "_mm_bias", "_linear", "_linear_backward"):
        operator = getattr(OPS, name).default
        takes_config = any(argument.name == "config" for argument in operator._schema.arguments)
        assert (torch.Tag.flexible_layout in operator.tags) is not takes_config


class Recorder:
    """A backend of torch.compile that keeps the arguments of every call of the public operator."""

    def __init__(self):
        self.calls = []

    def __call__(self, graph, inputs):
        for node in graph.graph.nodes:
            if node.target is OPS.gemm.default:
                self.calls.append(node.args[7:])
        return graph.forward


def test_settings_are_guarded():
    """Compiled outside a block and called inside it, a function must not keep the old settings."""
    recorder = Recorder()
    compiled = torch.compile(lambda a, b: matmul(a, b), fullgraph=True, backend=recorder)
    a, b = integers(3, 4), integers(4, 5)
    compiled(a, b)
    with hopgemm.batch_invariant():
        compiled(a, b)
        with hopgemm.sm_limit(9):
            compiled(a, b)
    compiled(a, b)
    assert recorder.calls == [("", 0, False), ("", 0, True), ("", 9, True)]


def test_fallback_is_decided_while_tracing(monkeypatch):
    monkeypatch.setattr(hopgemm.torch, "_runs_on", {torch.device("cpu"): False})
    recorder = Recorder()
    compiled = torch.compile(lambda a, b: matmul(a, b), fullgraph=True, backend=recorder)
    a, b = integers(3, 4), integers(4, 5)
    want = matmul(a, b)
    with hopgemm.fallback():
        assert_same(compiled(a, b), want)
        with_bias = torch.compile(
            lambda a, b, bias: matmul(a, b, bias=bias), fullgraph=True, backend=recorder
        )
        bias = integers(5)
        assert_same(with_bias(a, b, bias), want + bias)
    assert recorder.calls == []
    assert_same(compiled(a, b), want)
    assert recorder.calls == [("", 0, False)]


def test_errors_while_tracing():
    compiled = torch.compile(lambda a, b: matmul(a, b), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="supported: bfloat16, float16"):
        compiled(integers(3, 4).float(), integers(4, 5).float())
    with pytest.raises(Exception, match="last dimension of a"):
        compiled(integers(3, 4), integers(3, 4))


def test_export_and_reload(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(integers(4, 5))

        def forward(self, x):
            return matmul(x, self.w, sm_limit=11)

    model = Model()
    shapes = {"x": {0: torch.export.Dim("m", min=2)}}
    program = torch.export.export(model, (integers(3, 4),), dynamic_shapes=shapes)
    calls = [n for n in program.graph.nodes if n.target is OPS.gemm.default]
    assert len(calls) == 1 and calls[0].args[8] == 11
    torch.export.save(program, tmp_path / "program.pt2")
    x = integers(7, 4)
    assert_same(torch.export.load(tmp_path / "program.pt2").module()(x), model(x))
