"""Values of hopgemm.torch.matmul on a Hopper GPU: bit for bit those of float64 products of small integers."""

import functools
import itertools

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import DTYPES, GPU_BATCHES, assert_same, reference  # noqa: E402

from hopgemm.torch import matmul  # noqa: E402

pytestmark = pytest.mark.gpu
settled = torch_cases.settled
integers = functools.partial(torch_cases.integers, device="cuda")
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


@pytest.mark.parametrize("shape_a, shape_b", GPU_BATCHES)
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
