"""hopgemm.torch.matmul on CPU tensors: shapes, epilogue, strides, out=.

`test_torch_cpp.py` runs this file again over the C++ operators.
"""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch_cases import SHAPES, assert_same, canary, integers, raises, reference  # noqa: E402

from hopgemm.torch import matmul  # noqa: E402

EMPTY = [shape for shape in itertools.product((0, 5), repeat=3) if 0 in shape]


# ---- shapes and the epilogue ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_shapes_of_torch_matmul(shape_a, shape_b, dtype):
    a, b = integers(*shape_a, dtype=dtype), integers(*shape_b, dtype=dtype)
    assert_same(matmul(a, b), reference(a, b))
    assert matmul(a, b).is_contiguous()
    assert_same(matmul(a, b, out_dtype=torch.float32), reference(a, b, out_dtype=torch.float32))


@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize("c_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_epilogue(shape_a, shape_b, c_dtype, out_dtype):
    a, b = integers(*shape_a), integers(*shape_b)
    shape = torch.matmul(a, b).shape
    for c_shape in {shape, shape[1:], shape[:-1] + (1,) if shape else shape, ()}:
        c = integers(*c_shape, dtype=c_dtype)
        bias = integers(5, dtype=c_dtype) if len(shape_b) > 1 else None
        options = {"c": c, "bias": bias, "alpha": 2.0, "beta": 0.5, "out_dtype": out_dtype}
        assert_same(matmul(a, b, **options), reference(a, b, **options))


def test_one_rounding():
    # 256 + 1 is not a bfloat16: rounding the product before adding c would lose the 1; the sum would be 256.
    a, b = torch.full((1, 64), 2.0).bfloat16(), torch.full((64, 1), 2.0).bfloat16()
    c, bias = torch.tensor([[1.0]]).bfloat16(), torch.tensor([1.0]).bfloat16()
    assert matmul(a, b, c=c, beta=1.0, bias=bias).item() == 258
    ones = torch.ones(1, 1029).bfloat16()
    assert matmul(ones, ones.mT).item() == 1032 and matmul(-ones, ones.mT).item() == -1032
    half = torch.ones(1, 2049).half()
    assert matmul(half, half.mT).item() == 2048


def test_alpha_and_beta_zero_read_nothing():
    a, b, nan = integers(3, 4), integers(4, 5), torch.full((3, 5), float("nan")).bfloat16()
    assert_same(matmul(a, b, c=nan, beta=0), reference(a, b))
    assert_same(matmul(a, b, out=nan.clone()), reference(a, b))
    assert_same(matmul(a * float("nan"), b, alpha=0, c=(c := integers(3, 5)), beta=2), (2 * c))


@pytest.mark.parametrize("m, n, k", EMPTY)
def test_empty(m, n, k):
    a, b = integers(m, k).requires_grad_(), integers(k, n).requires_grad_()
    c, bias = integers(m, n), integers(n)
    d = matmul(a, b)
    assert_same(d.detach(), torch.zeros(m, n).bfloat16())
    assert_same(matmul(a, b, c=c, beta=1, bias=bias).detach(), c + bias)
    d.sum().backward()
    assert a.grad.shape == a.shape and b.grad.shape == b.shape and not a.grad.any() and not b.grad.any()
    assert matmul(integers(0, m, k), integers(k, n)).shape == (0, m, n)
    out = torch.full((m, n), float("nan")).bfloat16()
    assert_same(matmul(a.detach(), b.detach(), out=out), torch.zeros(m, n).bfloat16())


VIEWS = {
    "plain": lambda t: t.contiguous(),
    "transposed": lambda t: t.mT.contiguous().mT,
    "padded": lambda t: torch.nn.functional.pad(t, (1, 2), value=float("nan"))[..., 1:-2],
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "rows_strided": lambda t: t.repeat_interleave(3, -2)[..., ::3, :],
    "expanded": lambda t: t[..., :1, :].expand(t.shape),
    "expanded_columns": lambda t: t[..., :1].expand(t.shape),
    "batch_last": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
}


@pytest.mark.parametrize("view_b", VIEWS)
@pytest.mark.parametrize("view_a", VIEWS)
def test_strides(view_a, view_b):
    for shape_a, shape_b in (((7, 9), (9, 8)), ((2, 7, 9), (2, 9, 8)), ((2, 7, 9), (9, 8))):
        a, b = VIEWS[view_a](integers(*shape_a)), VIEWS[view_b](integers(*shape_b))
        assert_same(matmul(a, b), reference(a, b))
        c = VIEWS[view_a](integers(*matmul(a, b).shape))
        assert_same(matmul(a, b, c=c, beta=1), reference(a, b, c=c, beta=1))


def test_negated_view_and_meta():
    a, b = integers(3, 4), integers(4, 5)
    assert_same(matmul(torch._neg_view(a), b), reference(-a, b))
    assert matmul(a.to("meta"), b.to("meta"), out_dtype=torch.float32).dtype == torch.float32


# ---- out= ----

OUTS = {  # name: (buffer's shape, view of (6, 8) in it)
    "plain": ((6, 8), lambda t: t),
    "columns": ((6, 15), lambda t: t[:, 3:11]),
    "rows": ((12, 8), lambda t: t[::2]),
    "transposed": ((8, 6), lambda t: t.mT),
    "inner_stride": ((6, 16), lambda t: t[:, ::2]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", OUTS)
def test_out_layouts(layout, dtype):
    a, b, bias = integers(6, 7), integers(7, 8), integers(8, dtype=dtype)
    shape, view = OUTS[layout]
    buffer = canary(*shape, dtype=dtype)
    out = view(buffer)
    strides, version = out.stride(), out._version
    assert matmul(a, b, out=out, bias=bias) is out
    assert out.stride() == strides and out._version > version
    assert_same(out, reference(a, b, bias=bias, out_dtype=dtype))
    untouched = torch.ones(shape, dtype=torch.bool)
    view(untouched).zero_()
    assert (buffer[untouched] == -77).all()
    # accumulate: c is out, as the same tensor or as another view of the same elements
    before = out.clone()
    matmul(a, b, out=out, c=out if layout == "plain" else view(buffer), beta=2.0)
    assert_same(out, reference(a, b, c=before, beta=2.0, out_dtype=dtype))
    # c elsewhere; beta = 0 with c = out does not read it
    c = integers(6, 8, dtype=dtype)
    assert_same(matmul(a, b, out=out, c=c, beta=1.0), reference(a, b, c=c, beta=1.0, out_dtype=dtype))
    out.fill_(float("nan"))
    assert_same(matmul(a, b, out=out, c=out), reference(a, b, out_dtype=dtype))


@pytest.mark.parametrize("shape_a, shape_b", SHAPES)
def test_out_shapes(shape_a, shape_b):
    a, b = integers(*shape_a), integers(*shape_b)
    want = reference(a, b)
    out = torch.full_like(want, float("nan"))
    assert matmul(a, b, out=out) is out
    assert_same(out, want)
    assert_same(matmul(a, b, out=out, c=out, beta=1), 2 * want)


def test_out_beside_its_operand_in_one_buffer():
    buffer = integers(8, 24)
    a, b, out = buffer[:, :8], integers(8, 16), buffer[:, 8:]
    want = reference(a, b)
    try:
        matmul(a, b, out=out.mT.mT)
    except ValueError as error:  # a kernel may see only that the ranges cross
        assert "overlap" in str(error)
    else:
        assert_same(out, want)


def test_out_of_a_saved_tensor_is_noticed():
    x = integers(4, 4).requires_grad_()
    y = x * 2
    loss = (y * y).sum()
    with torch.no_grad():
        matmul(integers(4, 4), integers(4, 4), out=y)
    with raises(RuntimeError, "modified by an inplace operation"):
        loss.backward()
