"""The promises of docs/numerics.md on a Hopper GPU: error bounds, special values, rounding, the same bits."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch_cases import DTYPES, layouts, operand  # noqa: E402

import hopgemm  # noqa: E402
from hopgemm import _core  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "m, n, k", [(512, 512, 512), (100, 3000, 4096), (1000, 72, 16384), (2048, 2048, 2048)]
)
def test_random_data_within_the_bound(m, n, k, dtype):
    """|error| <= u |ref| + K 2^-23 (|a| x |b|), plus half the smallest subnormal in fp16.

    RMS within 1.02 of cuBLAS's.
    """
    a, b = (torch.randn(*s, device="cuda").to(dtype) for s in ((m, k), (k, n)))
    exact = a.double() @ b.double()
    bound = k * 2.0**-23 * (a.double().abs() @ b.double().abs())
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    got, cublas = hopgemm.matmul(a, b).double(), (a @ b).double()
    assert ((got - exact).abs() <= unit * exact.abs() + bound + 2.0**-25).all()
    rms = lambda x: (x - exact).square().mean().sqrt().item()
    assert rms(got) <= 1.02 * rms(cublas)
    fp32 = hopgemm.matmul(a, b, out_dtype=torch.float32).double()
    assert ((fp32 - exact).abs() <= 2.0**-24 * exact.abs() + bound).all()
    assert torch.equal(fp32.float().to(dtype), got.to(dtype))  # one rounding, of the same sums


def test_nan_and_inf_stay_in_their_rows():
    a, b = (
        torch.ones(300, 264, device="cuda", dtype=torch.bfloat16),
        torch.ones(264, 200, device="cuda", dtype=torch.bfloat16),
    )
    a[17, 100] = float("inf")
    b[100, ::3] = -1
    b[100, 1::3] = 0
    a[201, 33] = float("nan")
    clean = hopgemm.matmul(torch.ones_like(a), b)
    got = hopgemm.matmul(a, b)
    assert (
        (got[17, ::3] == -float("inf")).all()
        and got[17, 1::3].isnan().all()
        and (got[17, 2::3] == float("inf")).all()
    )
    assert got[201].isnan().all()
    rest = [i for i in range(300) if i not in (17, 201)]
    assert torch.equal(got[rest], clean[rest])


def test_rounding_and_subnormals():
    ones = lambda *s, dtype: torch.ones(*s, device="cuda", dtype=dtype)
    for dtype, k, want in [
        (torch.bfloat16, 1028, 1024),
        (torch.bfloat16, 1036, 1040),
        (torch.bfloat16, 1029, 1032),
        (torch.float16, 2049, 2048),
        (torch.float16, 2051, 2052),
    ]:
        assert (hopgemm.matmul(ones(8, k, dtype=dtype), ones(k, 8, dtype=dtype)) == want).all()
        assert (hopgemm.matmul(-ones(8, k, dtype=dtype), ones(k, 8, dtype=dtype)) == -want).all()
    for k, want in ((65519, 65504.0), (65520, float("inf"))):
        assert (
            hopgemm.matmul(ones(1, k, dtype=torch.float16), ones(k, 8, dtype=torch.float16)) == want
        ).all()
    tiny = torch.full((8, 1), 2.0**-24, device="cuda", dtype=torch.float16)
    big = torch.full((1, 8), 1024.0, device="cuda", dtype=torch.float16)
    assert (hopgemm.matmul(tiny, big) == 2.0**-14).all()
    assert (hopgemm.matmul(tiny, ones(1, 8, dtype=torch.float16)) == 2.0**-24).all()
    least = torch.full((8, 1), 2.0**-133, device="cuda", dtype=torch.bfloat16)
    assert (hopgemm.matmul(least, big.bfloat16()) == 2.0**-123).all()


@pytest.mark.parametrize("dtype, layout", list(layouts()))
def test_configs_agree_bit_for_bit(dtype, layout):
    """K runs forwards in every kernel, one multiply-add chain an element: no tile may show in the bits."""
    short = "bf16" if dtype == torch.bfloat16 else "f16"
    a = (
        torch.randn(520, 1000, device="cuda").to(dtype)
        if layout[0] == "k"
        else torch.randn(1000, 520, device="cuda").to(dtype).t()
    )
    b = (
        torch.randn(1000, 776, device="cuda").to(dtype)
        if layout[1] == "n"
        else torch.randn(776, 1000, device="cuda").to(dtype).t()
    )
    names = [c for c in _core.configs() if c.startswith(f"{short}_{layout}_")]
    want = hopgemm.matmul(a, b, config=names[0], out_dtype=torch.float32)
    for name in names[1:]:
        assert torch.equal(hopgemm.matmul(a, b, config=name, out_dtype=torch.float32), want), name


def test_a_tail_has_the_same_bits_on_every_number_of_sms():
    a, b = (torch.randn(n, 65536, device="cuda").bfloat16() for n in (512, 520))
    for config in (None, "bf16_kk_128x256x64_c2x1_s4_coop+tail5x33"):
        run = lambda **options: hopgemm.matmul(
            a,
            b.t(),
            out_dtype=torch.float32,
            config=config,
            **options,  # noqa: B023
        )
        want = run()
        assert ((want - a.float() @ b.t().float()).abs() < 0.5).all()
        for sms in (2, 3, 50, 131):
            assert torch.equal(run(sm_limit=sms), want), sms


@pytest.mark.parametrize("sms", [1, 2, 3, 7, 16, 78, 114, 131])
def test_any_number_of_sms(sms):
    a, b = operand(1030, 520, torch.bfloat16, True, True), operand(520, 2050, torch.bfloat16, False, True)
    want = (a.float() @ b.float()).bfloat16()
    assert torch.equal(hopgemm.matmul(a, b, sm_limit=sms), want)
    for config in (c for c in _core.configs() if c.startswith("bf16_kk")):
        if sms == 1 and "_c1x1_" not in config:
            with pytest.raises(ValueError, match="clusters of 2"):
                hopgemm.matmul(a, b, sm_limit=sms, config=config)
        else:
            assert torch.equal(hopgemm.matmul(a, b, sm_limit=sms, config=config), want), config


PART = """
import sys, torch, hopgemm
from torch.cuda.green_contexts import GreenContext
make = lambda *s: torch.randint(-2, 3, s, device="cuda").bfloat16()
products = [(make(m, k), make(k, n)) for m, n, k in ((1030, 2050, 520), (1024, 2048, 512), (16, 4096, 4096))]
want = [(a.double() @ b.double()).bfloat16() for a, b in products]
torch.cuda.synchronize()
context = GreenContext.create(num_sms=int(sys.argv[1]), device_id=0)
for inside in (True, False, True):
    if inside:
        context.set_context()
    got = [hopgemm.matmul(a, b) for a, b in products]
    torch.cuda.synchronize()
    if inside:
        context.pop_context()
    assert all(torch.equal(x, y) for x, y in zip(got, want))
print("exact")
"""


@pytest.mark.parametrize("sms", [8, 16, 66, 100])
def test_on_a_part_of_the_gpu(sms):
    """In a green context fewer CTAs run at once than a grid planned for the whole GPU has."""
    if not pytest.importorskip("torch.cuda.green_contexts").SUPPORTED:
        pytest.skip("this torch makes no green contexts")
    command = [sys.executable, "-c", PART, str(sms)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "exact\n", done.stderr


def test_the_same_bits_every_time():
    a, b = (
        torch.randn(3000, 2048, device="cuda").bfloat16(),
        torch.randn(2048, 3000, device="cuda").bfloat16(),
    )
    want = hopgemm.matmul(a, b)
    busy = torch.cuda.Stream()
    for i in range(50):
        with torch.cuda.stream(busy):
            torch.mm(b, a)
        assert torch.equal(hopgemm.matmul(a, b, sm_limit=[0, 100, 7][i % 3]), want)


def test_a_row_depends_on_nothing_else():
    a, b = torch.randn(777, 1000, device="cuda").half(), torch.randn(1000, 640, device="cuda").half()
    with hopgemm.batch_invariant():
        whole = hopgemm.matmul(a, b)
        for rows in ([0], [5, 6, 7], list(range(100, 400)), [776]):
            assert torch.equal(hopgemm.matmul(a[rows], b), whole[rows])
        batch = hopgemm.matmul(a[:100].expand(9, -1, -1), b.expand(9, -1, -1).contiguous())
        assert all(torch.equal(x, whole[:100]) for x in batch)
