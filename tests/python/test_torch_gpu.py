"""hopgemm.torch.matmul on a Hopper GPU. Small integers, compared bit for bit with float64 products."""

import itertools
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch")

import hopgemm  # noqa: E402
import hopgemm.torch  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16]
NAN = float("nan")
TMA = [
    (64, 64, 64),
    (128, 256, 64),
    (129, 264, 72),
    (8, 8, 8),
    (1024, 512, 256),
    (136, 1000, 8),
    (1, 4096, 512),
]
ODD = [(1, 1, 1), (7, 130, 33), (65, 127, 105), (33, 50257, 17), (128, 129, 200), (3, 2, 1029), (257, 5, 63)]


@pytest.fixture(autouse=True)
def settled():
    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()  # a fault of this test is reported here, not in the next one


def integers(*shape, dtype=torch.bfloat16, low=-3, high=3):
    return torch.randint(low, high + 1, shape, device="cuda").to(dtype)


def reference(a, b, c=None, bias=None, alpha=1.0, beta=0.0, out_dtype=None):
    d = alpha * torch.matmul(a.double(), b.double())
    d = d if c is None or beta == 0 else d + beta * c.double()
    d = d if bias is None else d + bias.double()
    return d.float().to(out_dtype or a.dtype)  # exact in fp32: one rounding


def assert_same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape and got.device == want.device
    if not torch.equal(got, want):
        wrong = (got != want).nonzero()
        raise AssertionError(f"{len(wrong)} of {want.numel()} wrong, the first at {wrong[0].tolist()}")


def poisoned(values, pad=8, transposed=False):
    """The same values inside a NaN-filled buffer whose rows are `pad` elements longer."""
    t = values.mT if transposed else values
    buffer = torch.full(
        (*t.shape[:-2], t.shape[-2] + 2, t.shape[-1] + pad), NAN, dtype=t.dtype, device=t.device
    )
    view = buffer[..., 1:-1, : t.shape[-1]]
    view.copy_(t)
    return view.mT if transposed else view


# ---- values ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, n, k", TMA + ODD)
def test_exact_in_every_layout(m, n, k, dtype):
    a, b = integers(m, k, dtype=dtype), integers(k, n, dtype=dtype)
    for out_dtype in (dtype, torch.float32):
        want = reference(a, b, out_dtype=out_dtype)
        for transpose_a, transpose_b in itertools.product((False, True), repeat=2):
            plain_a = a.mT.contiguous().mT if transpose_a else a
            plain_b = b.mT.contiguous().mT if transpose_b else b
            assert_same(matmul(plain_a, plain_b, out_dtype=out_dtype), want)
            for pad in (8, 3):
                pa, pb = poisoned(a, pad, transpose_a), poisoned(b, pad, transpose_b)
                assert_same(matmul(pa, pb, out_dtype=out_dtype), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_k(dtype):
    for k in range(1, 201):
        a, b = torch.ones(64, k, device="cuda", dtype=dtype), torch.ones(k, 64, device="cuda", dtype=dtype)
        assert (matmul(a, b, out_dtype=torch.float32) == k).all(), k
        a[:, :-1] = 0
        a[:, -1] = 3
        assert (matmul(a, b, out_dtype=torch.float32) == 3).all(), k


def test_sizes_around_tiles():
    sizes = (1, 7, 63, 64, 65, 127, 128, 129, 136, 255, 256, 257)
    for m, n, k in itertools.product(sizes, sizes, (8, 65, 128)):
        a, b = integers(m, k), integers(k, n)
        assert_same(matmul(a, b), reference(a, b))


@pytest.mark.parametrize("m, n, k", TMA[:5] + ODD)
def test_epilogue_and_canaries(m, n, k):
    a, b = integers(m, k), integers(k, n)
    for c_dtype, out_dtype in itertools.product((torch.bfloat16, torch.float32), repeat=2):
        c, bias = integers(m, n, dtype=c_dtype), integers(n, dtype=c_dtype)
        options = {"bias": bias, "alpha": 2.0, "beta": 0.5}
        for source in (c, poisoned(c, 3), poisoned(c, 8, True), c[:1], c[:, :1]):
            want = reference(a, b, c=source, out_dtype=out_dtype, **options)
            assert_same(matmul(a, b, c=source, out_dtype=out_dtype, **options), want)
        buffer = torch.full((m + 2, n + 11), -77.0, device="cuda", dtype=out_dtype)
        out = buffer[1:-1, 3 : n + 3]
        matmul(a, b, c=c, out=out, **options)
        assert_same(out.contiguous(), reference(a, b, c=c, out_dtype=out_dtype, **options))
        out.fill_(-77.0)
        assert (buffer == -77).all(), "the surroundings of out were written"
        nan = torch.full_like(c, NAN)
        assert_same(matmul(a, b, c=nan), reference(a, b))
        assert_same(matmul(a, b, c=c, alpha=0.0, beta=2.0), (2 * c).bfloat16())


OUTS = {
    "transposed": lambda m, n: torch.empty(n, m, device="cuda").bfloat16().mT,
    "inner_stride": lambda m, n: torch.empty(m, 2 * n, device="cuda").bfloat16()[:, ::2],
    "rows": lambda m, n: torch.empty(2 * m, n, device="cuda").bfloat16()[::2],
    "misaligned": lambda m, n: torch.empty(m * n + 1, device="cuda").bfloat16()[1:].view(m, n),
}


@pytest.mark.parametrize("layout", OUTS)
def test_out(layout):
    for m, n, k in TMA[:3] + ODD[1:4]:
        a, b, bias = integers(m, k), integers(k, n), integers(n)
        out = OUTS[layout](m, n)
        strides, pointer, version = out.stride(), out.data_ptr(), out._version
        assert matmul(a, b, out=out.fill_(NAN), bias=bias) is out
        assert_same(out, reference(a, b, bias=bias))
        matmul(a, b, out=out, c=out, beta=1.0)
        assert_same(out, (reference(a, b, bias=bias).double() + a.double() @ b.double()).float().bfloat16())
        assert (out.stride(), out.data_ptr()) == (strides, pointer) and out._version > version


def test_out_refusals():
    a, b = integers(64, 64), integers(64, 64)
    for out in (a, b, a.mT):
        with pytest.raises(ValueError, match="out overlaps"):
            matmul(a, b, out=out)
    buffer = integers(65, 64)
    with pytest.raises(ValueError, match="out overlaps a"):
        matmul(buffer[:64], b, out=buffer[1:])
    with pytest.raises(ValueError, match="several elements|overlaps itself"):
        matmul(a, b, out=integers(64).expand(64, 64))
    wide = integers(64, 128)
    want = reference(wide[:, :64], b)
    matmul(wide[:, :64], b, out=wide[:, 64:])  # column slices of one buffer do not touch
    assert_same(wide[:, 64:].contiguous(), want)


def test_misaligned_bases():
    m, n, k = 40, 48, 56

    def shifted(t, offset):
        flat = torch.full((t.numel() + 16,), NAN, device="cuda", dtype=t.dtype)
        view = flat[offset : offset + t.numel()].view(t.shape)
        return view.copy_(t)

    a, b, bias, c = integers(m, k), integers(k, n), integers(n), integers(m, n)
    want = reference(a, b, c=c, bias=bias, beta=1.0)
    for offset in range(16):
        for mask in (1, 2, 4, 8, 16, 31):
            x, y, z, w = (shifted(t, offset if mask >> i & 1 else 0) for i, t in enumerate((a, b, bias, c)))
            out = shifted(torch.full_like(c, -77.0), offset if mask & 16 else 0)
            assert_same(matmul(x, y, c=w, bias=z, beta=1.0, out=out), want)


def test_odd_strides():
    base = integers(200)
    for strides in ((1, 1), (3, 1), (0, 1), (1, 0), (0, 0), (1, 3)):
        a = base.as_strided((40, 24), strides)
        for x, y in ((a, integers(24, 32)), (integers(32, 40), a), (a.mT, a)):
            assert_same(matmul(x, y), reference(x, y))
    one = integers(1, 16, 24)
    for stride in (2**31, 2**32, 2**40):  # of a dimension of size 1: legal, and never used
        x = one.as_strided((1, 16, 24), (stride, 24, 1))
        y = integers(1, 24, 8)
        assert_same(matmul(x, y), reference(x, y))


BATCHES = [
    ((3, 17, 24), (3, 24, 40)),
    ((3, 17, 24), (24, 40)),
    ((17, 24), (3, 24, 40)),
    ((2, 1, 16, 24), (3, 24, 40)),
    ((2, 1, 2, 8, 16), (1, 3, 2, 16, 8)),
    ((2, 1, 1, 2, 1, 2, 8, 16), (3, 1, 2, 1, 16, 8)),
    ((24,), (24, 40)),
    ((17, 24), (24,)),
    ((24,), (24,)),
    ((24,), (3, 24, 40)),
    ((3, 17, 24), (24,)),
]


@pytest.mark.parametrize("shape_a, shape_b", BATCHES)
def test_batches(shape_a, shape_b):
    a, b = integers(*shape_a), integers(*shape_b)
    want = reference(a, b)
    assert_same(matmul(a, b), want)
    out = torch.full_like(want, NAN)
    assert_same(matmul(a, b, out=out), want)
    for c_shape in {want.shape, want.shape[1:], want.shape[:-1] + (1,) if want.dim() else want.shape}:
        c = integers(*c_shape, dtype=torch.float32)
        assert_same(matmul(a, b, c=c, beta=1.0), reference(a, b, c=c, beta=1.0))
    if a.dim() > 2:
        last = a.movedim(0, -1).contiguous().movedim(-1, 0)
        assert_same(matmul(last, b), want)


def test_many_batches():
    for count in (65535, 65536, 65537):
        a = (torch.arange(count, device="cuda") % 7).bfloat16()[:, None, None].expand(count, 8, 16)
        b = torch.ones(count, 16, 8, device="cuda").bfloat16()
        assert_same(matmul(a, b), (16 * a[:, :, :1]).expand(count, 8, 8).contiguous())


def test_empty_products_write_zeros():
    torch.full(
        (1 << 24,), NAN, device="cuda"
    )  # freed at once: what the allocator hands out next is full of NaN
    for shape_a, shape_b in (((7, 0), (0, 130)), ((3, 2, 0), (3, 0, 3))):
        d = matmul(integers(*shape_a), integers(*shape_b))
        assert (d.view(torch.int16) == 0).all()
        assert (matmul(integers(*shape_a), integers(*shape_b), out=torch.full_like(d, NAN)) == 0).all()
    bias = integers(130)
    assert_same(matmul(integers(7, 0), integers(0, 130), bias=bias), bias.expand(7, 130).contiguous())
    for m, n, k in itertools.product((0, 16), repeat=3):
        a, b = integers(m, k).requires_grad_(), integers(k, n).requires_grad_()
        matmul(a, b).sum().backward()
        assert a.grad.shape == a.shape and b.grad.shape == b.shape
        if 0 in (m, n, k):
            assert not a.grad.any() and not b.grad.any()


def test_special_values():
    a, b = integers(130, 72), integers(72, 136)
    b[5] = torch.tensor([1.0, -1.0, 0.0], device="cuda").bfloat16().repeat(46)[:136]
    clean = matmul(a, b)
    a[3, 5], a[70, 6] = float("inf"), NAN
    d = matmul(a, b)
    assert torch.equal(d[3].isnan(), b[5] == 0) and torch.equal(d[3].isposinf(), b[5] > 0)
    assert d[70].isnan().all()
    others = [i for i in range(130) if i not in (3, 70)]
    assert torch.equal(d[others], clean[others])


def test_rounding_once_and_subnormals():
    for dtype, cases in (
        (torch.bfloat16, {1028: 1024, 1036: 1040, 1029: 1032}),
        (torch.float16, {2049: 2048, 2051: 2052}),
    ):
        for k, want in cases.items():
            a = torch.ones(64, k, device="cuda", dtype=dtype)
            assert (matmul(a, a.mT) == want).all() and (matmul(-a, a.mT) == -want).all()
            bias = torch.ones(64, device="cuda", dtype=dtype)
            assert (matmul(a[:, 1:], a[:, 1:].mT, bias=bias) == want).all()
    tiny = torch.full((64, 8), 2.0**-24, device="cuda").half()
    scale = torch.zeros(8, 64, device="cuda").half()
    scale[0] = 1.0
    assert (matmul(tiny, scale) == 2.0**-24).all()


def test_more_than_2_31_elements():
    m, k = 65536, 32776
    a = torch.zeros(m, k, device="cuda", dtype=torch.bfloat16)
    rows = torch.tensor(
        [0, 1, m - 1, m - 2, 2**31 // k, 2**31 // k + 1, 2**30 // k, 2**30 // k + 1], device="cuda"
    )
    a[rows] = integers(len(rows), k)
    b = integers(k, 16, low=-1, high=1)
    d = matmul(a, b, out_dtype=torch.float32)
    assert_same(d[rows], reference(a[rows], b, out_dtype=torch.float32))
    d[rows] = 0
    assert not d.any()


# ---- autograd ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape_a, shape_b", BATCHES + [((129, 72), (72, 136)), ((65, 33), (33, 7))])
def test_gradients(shape_a, shape_b, dtype):
    ours = [integers(*s, dtype=dtype, low=-1, high=1).requires_grad_() for s in (shape_a, shape_b)]
    theirs = [t.detach().double().requires_grad_() for t in ours]
    want = torch.matmul(*theirs)
    w = integers(*want.shape, dtype=dtype, low=-1, high=1)
    wanted = torch.autograd.grad(want, theirs, w.double())
    for call in (matmul, lambda a, b: matmul(a, b, alpha=1.0, sm_limit=16), torch.ops.hopgemm.gemm):
        if call is torch.ops.hopgemm.gemm and 1 in (len(shape_a), len(shape_b)):
            continue
        for got, exact in zip(torch.autograd.grad(call(*ours), ours, w), wanted, strict=True):
            assert_same(got, exact.float().to(dtype))
    summed = torch.autograd.grad(matmul(*ours).sum(), ours)  # a cotangent of stride 0
    for got, exact in zip(summed, torch.autograd.grad(torch.matmul(*theirs).sum(), theirs), strict=True):
        assert_same(got, exact.float().to(dtype))


def test_gradients_of_c_and_bias_and_fp32_cotangent():
    a, b = integers(65, 40).requires_grad_(), integers(40, 24).requires_grad_()
    c, bias = integers(65, 24, dtype=torch.float32).requires_grad_(), integers(24).requires_grad_()
    d = matmul(a, b, c=c, beta=2.0, bias=bias, out_dtype=torch.float32)
    g = torch.full((65, 24), 257.0, device="cuda")  # rounds to 256 in bfloat16, for the products alone
    grads = torch.autograd.grad(d, (a, b, c, bias), g)
    rounded = torch.full((65, 24), 256.0, device="cuda").bfloat16()
    assert_same(grads[0], reference(rounded, b.detach().mT))
    assert_same(grads[1], reference(a.detach().mT, rounded))
    assert_same(grads[2], 2 * g)
    assert_same(grads[3], g.sum(0).bfloat16())


def test_func_autocast_and_second_order():
    a, b = integers(5, 33, 16), integers(16, 24)
    assert_same(torch.vmap(matmul, (0, None))(a, b), reference(a, b))
    assert_same(
        torch.vmap(matmul, (None, 0))(b.mT, b.expand(3, 16, 24)), reference(b.mT, b.expand(3, 16, 24))
    )
    x = integers(8, 8, dtype=torch.float32).requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        d = matmul(x, x.mT)
    assert d.dtype == torch.float16
    (g,) = torch.autograd.grad(d.float().sum(), x, create_graph=False)
    assert g.dtype == torch.float32
    y = integers(8, 8, low=-1, high=1).requires_grad_()
    (first,) = torch.autograd.grad(matmul(y, y).sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y)
    assert_same(second, torch.full((8, 8), 16.0, device="cuda").bfloat16())


# ---- streams, graphs, threads, devices ----


def busy(milliseconds=20):
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def test_side_streams():
    stream = torch.cuda.Stream()
    w = integers(72, 40)
    for k in (72, 71):  # the second is packed through a workspace
        x = integers(64, k)
        want = reference(x, w[:k])
        torch.cuda.synchronize()
        for _ in range(5):
            source = torch.zeros_like(x)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                busy()
                source.copy_(x)
                d = matmul(source, w[:k])
            assert not stream.query(), "the call waited for the GPU"
            stream.synchronize()
            assert_same(d, want)


def test_workspace_is_not_reused_too_early():
    stream = torch.cuda.Stream()
    a, b = integers(257, 1025), integers(1025, 129)
    want = reference(a, b)
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        with torch.cuda.stream(stream):
            results.append(matmul(a, b))
        torch.full((1 << 20,), NAN, device="cuda")  # on the other stream, from the same allocator
    torch.cuda.synchronize()
    for d in results:
        assert_same(d, want)


def test_graph_replay():
    for m, n, k in ((128, 256, 64), (65, 127, 33), (64, 64, 0)):
        x, w, bias = integers(m, k), integers(k, n), integers(n)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            d = matmul(x, w, bias=bias)
            e = matmul(d.mT, d, out_dtype=torch.float32)
        for _ in range(3):
            x.copy_(integers(m, k))
            bias.copy_(integers(n, low=-1, high=1))
            graph.replay()
            assert_same(d, reference(x, w, bias=bias))
            assert_same(e, reference(d.mT, d, out_dtype=torch.float32))
            matmul(integers(m, n), integers(n, m))  # eager calls in between have their own operands


def test_graph_of_a_training_step():
    x, w = integers(64, 40, low=-1, high=1), integers(40, 24, low=-1, high=1).requires_grad_()
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        matmul(x, w).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    w.grad = None
    with torch.cuda.graph(graph):
        matmul(x, w).sum().backward()
    x.copy_(integers(64, 40, low=-1, high=1))
    graph.replay()
    assert_same(w.grad, x.double().sum(0)[:, None].expand(40, 24).bfloat16().contiguous())


FIRST_IN_CAPTURE = """
    import torch, hopgemm
    make = lambda *s: torch.randint(-3, 4, s, device="cuda").to(torch.bfloat16)
    m, n, k = {shape}
    a, b, bias, out = make(m, k), make(k, n), make(n), make(m, n)
    want = (a.double() @ b.double() + bias.double()).bfloat16()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        {call}
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(d, want), (d, want)
    print("exact")
"""


@pytest.mark.parametrize(
    "call", ["d = hopgemm.matmul(a, b, bias=bias)", "d = hopgemm.matmul(a, b, bias=bias, out=out)"]
)
@pytest.mark.parametrize("shape", [(128, 256, 64), (65, 127, 33), (64, 64, 0), (1, 4096, 512)])
def test_first_call_of_a_process_inside_a_capture(shape, call):
    code = textwrap.dedent(FIRST_IN_CAPTURE).format(shape=shape, call=call)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and run.stdout.strip() == "exact", run.stderr


def test_two_threads():
    failures = []

    def work(seed):
        try:
            generator = torch.Generator("cuda").manual_seed(seed)
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(100):
                    k = 64 + i % 9
                    a = torch.randint(-3, 4, (130, k), device="cuda", generator=generator).bfloat16()
                    b = torch.randint(-3, 4, (k, 72), device="cuda", generator=generator).bfloat16()
                    assert_same(matmul(a, b, sm_limit=seed), reference(a, b))
                torch.cuda.current_stream().synchronize()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (7, 66)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(t.is_alive() for t in threads), failures


def test_sm_limits_and_batch_invariance_give_exact_results():
    a, b = integers(515, 264), integers(264, 392)
    want = reference(a, b)
    for limit in (1, 2, 3, 16, 66, 131, 1000):
        assert_same(matmul(a, b, sm_limit=limit), want)
    with hopgemm.batch_invariant():
        x, w = (
            torch.randn(300, 520, device="cuda").bfloat16(),
            torch.randn(520, 264, device="cuda").bfloat16(),
        )
        whole = matmul(x, w)
        for rows in (slice(0, 1), slice(7, 72), slice(150, 300)):
            assert_same(matmul(x[rows], w), whole[rows])
    assert_same(matmul(x, w), matmul(x, w))


def test_devices_must_agree():
    a, b = integers(8, 8), integers(8, 8)
    for x, y in ((a.cpu(), b), (a, b.cpu())):
        with pytest.raises(TypeError, match="cpu.*cuda:0|cuda:0.*cpu"):
            matmul(x, y)
    for name in ("c", "bias", "out"):
        t = (integers(8) if name == "bias" else integers(8, 8)).cpu()
        with pytest.raises(TypeError, match=f"{name} is .* on cpu"):
            matmul(a, b, **{name: t}, beta=float(name == "c"))
    assert_same(matmul(a, b), reference(a, b))  # and nothing is left behind


def test_another_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = integers(65, 40).to("cuda:1"), integers(40, 24).to("cuda:1")
    assert_same(matmul(a, b), reference(a, b))
    assert torch.cuda.current_device() == 0
    with pytest.raises(TypeError, match="cuda:0.*cuda:1"):
        matmul(a.to("cuda:0"), b)


def test_refusals_leave_the_device_usable():
    a, b = integers(64, 64), integers(64, 64)
    with pytest.raises(ValueError, match="nonsense"):
        matmul(a, b, config="nonsense")
    with pytest.raises(TypeError, match="float64"):
        matmul(a.double(), b.double())
    assert_same(matmul(a, b), reference(a, b))


def test_negated_and_saved_views():
    a, b = integers(64, 40), integers(40, 24)
    assert_same(matmul(torch._neg_view(a), b), reference(-a, b))


# ---- torch.compile ----


def test_compiled_step():
    pytest.importorskip("triton")

    def step(x, w, bias):
        return matmul(matmul(x, w, bias=bias).relu(), w.mT).float().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for m in (64, 33, 129):
        args = [integers(*s, low=-1, high=1).requires_grad_() for s in ((m, 40), (40, 24), (24,))]
        got, want = torch.autograd.grad(compiled(*args), args), torch.autograd.grad(step(*args), args)
        for x, y in zip(got, want, strict=True):
            assert_same(x, y)


def test_reduce_overhead():
    pytest.importorskip("triton")
    w = integers(40, 24)
    compiled = torch.compile(lambda x: matmul(x, w) * 1, mode="reduce-overhead", fullgraph=True)
    for _ in range(6):
        x = integers(65, 40)
        assert_same(compiled(x).clone(), reference(x, w))
