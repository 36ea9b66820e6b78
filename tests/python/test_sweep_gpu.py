"""The kernel itself on a Hopper GPU: every tail, layout, config and path, on exact integers, bit for bit.

Operands lie inside NaN, results inside canaries. Each sweep counts which path its cases took, and fails where
the TMA path or the pack path saw under 40% of them.
"""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch_cases import DTYPES, MAJORS, capture, layouts, operand  # noqa: E402

import hopgemm  # noqa: E402
from hopgemm import _config_name, _core  # noqa: E402

pytestmark = pytest.mark.gpu

SMALL = [1, 2, 3, 5, 7, 8, 15, 16, 17]
SIZES = [*SMALL, 31, 33, 63, 64, 65, 72, 105, 107, 127, 128, 129, 136, 256, 264]
CANARY = 77.0


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def result(rows, cols, dtype, padded):
    """A rows x cols view inside a canary-filled buffer, and the buffer."""
    pitch = (cols + 15) // 16 * 16 + 16 if padded else cols
    buffer = torch.full((rows * pitch + 64,), CANARY, dtype=dtype, device="cuda")
    return buffer.as_strided((rows, cols), (pitch, 1), 16 if padded else 0), buffer


class Sweep:
    """Runs cases without waiting for each; `finish` looks at them all."""

    def __init__(self):
        self.bad = torch.zeros((), dtype=torch.int64, device="cuda")
        self.cases = self.packed = 0

    def case(self, m, n, k, dtype, majors, padded, out_dtype=None, config=None):
        a = operand(m, k, dtype, majors[0] == "k", padded)
        b = operand(k, n, dtype, majors[1] == "n", padded)
        out, buffer = result(m, n, out_dtype or dtype, padded)
        hopgemm.matmul(a, b, out=out, out_dtype=out_dtype, config=config)
        want = (a.float() @ b.float()).to(out.dtype)
        wrong = (out != want).sum()
        out.fill_(CANARY)  # then the whole buffer must be canaries
        self.bad += wrong + (buffer != CANARY).sum()
        plan = _core.plan(
            name_of(dtype), name_of(out.dtype), m, n, k,
            [], list(a.stride()), list(b.stride()), list(out.stride()),
            alignment=tuple(t.data_ptr() & -t.data_ptr() for t in (a, b, out)), config=config or "",
        )  # fmt: skip
        self.cases += 1
        self.packed += plan["pack_a"] or plan["pack_b"]
        if self.cases % 256 == 0:
            self.check(f"one of the 256 cases up to {(m, n, k, dtype, majors, padded)}")

    def check(self, where):
        assert self.bad.item() == 0, f"{self.bad.item()} wrong elements, {where}"

    def finish(self, both_paths=True):
        self.check("at the end")
        if both_paths:
            share = self.packed / self.cases
            assert 0.4 <= share <= 0.6, f"{share:.0%} of {self.cases} cases were packed"


def test_cube_of_small_sizes():
    sweep = Sweep()
    for m, n, k in itertools.product(SMALL, repeat=3):
        for dtype, majors in layouts():
            sweep.case(m, n, k, dtype, majors, padded=True)
            sweep.case(m, n, k, dtype, majors, padded=False)
    # A size of 1 or a multiple of 8 needs no padding, so that fewer contiguous cases are packed than not.
    sweep.finish(both_paths=False)
    assert sweep.packed > 0.3 * sweep.cases


def test_pairs_of_all_sizes():
    sweep = Sweep()
    third = itertools.cycle([3, 72, 130, 7, 264])
    for x, y in itertools.product(SIZES, repeat=2):
        z = next(third)
        for m, n, k in ((x, y, z), (z, x, y), (x, z, y)):
            for dtype, majors in layouts():
                sweep.case(m, n, k, dtype, majors, padded=True)
                sweep.case(m, n, k, dtype, majors, padded=False)
    sweep.finish(both_paths=False)
    assert sweep.packed > 0.3 * sweep.cases


@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_sizes_take_both_paths(dtype):
    sweep = Sweep()
    for m, n, k in itertools.product(
        [3, 31, 65, 107, 129, 255], [5, 33, 63, 127, 257], [7, 63, 65, 105, 200 + 1]
    ):
        for majors in MAJORS:
            sweep.case(m, n, k, dtype, majors, padded=True)
            sweep.case(m, n, k, dtype, majors, padded=False)
    sweep.finish()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_k_drops_no_tail(dtype):
    for k in range(1, 201):
        a, b = operand(64, k, dtype, True, k % 2 == 0, 1, 1), operand(k, 64, dtype, False, k % 2 == 0, 1, 1)
        assert (hopgemm.matmul(a, b, out_dtype=torch.float32) == k).all(), k
        a[:, : k - 1] = 0
        a[:, k - 1] = 3
        assert (hopgemm.matmul(a, b, out_dtype=torch.float32) == 3).all(), k


@pytest.mark.parametrize("config", _core.configs())
def test_every_config(config):
    """Tails, one tile, more tiles than CTAs, K below the ring and above, both result types, both stores."""
    dtype = torch.bfloat16 if config.startswith("bf16") else torch.float16
    majors = config.split("_")[1]
    sweep = Sweep()
    for m, n, k in [
        (8, 16, 8),
        (129, 257, 72),
        (300, 520, 200),
        (2048, 1536, 64),
        (1, 4096, 136),
        (2000, 9, 1000),
        (3333, 2777, 328),
    ]:
        for padded, out_dtype in ((True, None), (True, torch.float32)):
            if min(m, n, k) > 1:  # with a size of 1 an operand has both majors, and the plan takes K
                sweep.case(m, n, k, dtype, majors, padded, out_dtype, config)
    sweep.finish(both_paths=False)
    out, buffer = result(333, 1001, dtype, padded=False)  # rows that TMA cannot write
    a, b = operand(333, 200, dtype, majors[0] == "k", True), operand(200, 1001, dtype, majors[1] == "n", True)
    hopgemm.matmul(a, b, out=out, config=config)
    assert torch.equal(out, (a.float() @ b.float()).to(dtype))
    assert (buffer[333 * 1001 :] == CANARY).all()


@pytest.mark.parametrize("split", [2, 4, 8])
@pytest.mark.parametrize("config", [c for c in _core.configs() if c.endswith("_swap")])
def test_every_split(config, split):
    """Unequal parts of K, parts out of range, more tiles than clusters; the epilogue; the same bits again."""
    if split > 4:
        with pytest.raises(ValueError, match="splits K"):
            hopgemm.matmul(*ones(config, 64, 64, 1024), config=f"{config}+split{split}")
        return
    dtype = torch.bfloat16 if config.startswith("bf16") else torch.float16
    majors, name = config.split("_")[1], f"{config}+split{split}"
    sweep = Sweep()
    for m, n, k in [(8, 16, 64 * split), (17, 129, 64 * split + 8), (33, 9000, 1096), (130, 700, 2048)]:
        for padded, out_dtype in ((True, None), (True, torch.float32)):
            sweep.case(m, n, k, dtype, majors, padded, out_dtype, name)
    sweep.finish(both_paths=False)
    a = operand(50, 1000, dtype, majors[0] == "k", True)
    b = operand(1000, 300, dtype, majors[1] == "n", True)
    c, bias = operand(50, 300, dtype, True, True), operand(1, 300, torch.float32, True, False)[0]
    want = (2 * c.float() - a.float() @ b.float() + bias).to(dtype)
    assert torch.equal(hopgemm.matmul(a, b, c=c, bias=bias, alpha=-1.0, beta=2.0, config=name), want)
    hopgemm.matmul(a, b, c=c, bias=bias, alpha=-1.0, beta=2.0, out=c, config=name)  # written meanwhile
    assert torch.equal(c, want)
    a.normal_(), b.normal_()
    first = hopgemm.matmul(a, b, out_dtype=torch.float32, config=name)
    for _ in range(20):  # whichever part arrives first
        assert torch.equal(hopgemm.matmul(a, b, out_dtype=torch.float32, config=name), first)


def blocks(config, m, n):
    """Cluster tiles of a product."""
    x = _config_name.parse(config)
    return -(-m // (x.tile_m * x.cluster_m)) * -(-n // (x.tile_n * x.cluster_n))


@pytest.mark.parametrize("config", [c for c in _core.configs() if not c.endswith("_swap")])
def test_every_config_with_a_tail(config):
    """Whole tiles first; ranges end inside tiles or span several; more parts than one thread adds."""
    dtype = torch.bfloat16 if config.startswith("bf16") else torch.float16
    majors = config.split("_")[1]
    sweep = Sweep()
    for m, n, k, tail, ranges in [
        (8, 16, 128, 1, 2),
        (129, 257, 360, 2, 5),
        (70, 1100, 64 * 19, 1, 17),
        (1500, 2777, 200, 40, 66),
        (1500, 2777, 1000, 47, 131),
        (1500, 2777, 328, 20, 7),
        (300, 400, 64 * 256, 1, 4),  # long shares, which lie end to end
    ]:
        tail = min(tail, blocks(config, m, n))
        for padded, out_dtype in ((True, None), (True, torch.float32)):
            sweep.case(m, n, k, dtype, majors, padded, out_dtype, f"{config}+tail{tail}x{ranges}")
    sweep.finish(both_paths=False)
    out, buffer = result(333, 1001, dtype, padded=False)  # rows that TMA cannot write
    a, b = operand(333, 200, dtype, majors[0] == "k", True), operand(200, 1001, dtype, majors[1] == "n", True)
    hopgemm.matmul(a, b, out=out, config=f"{config}+tail2x5")
    assert torch.equal(out, (a.float() @ b.float()).to(dtype))
    assert (buffer[333 * 1001 :] == CANARY).all()


@pytest.mark.parametrize("schedule", ["+tail7x50", "+ctas4+waves1", "+ctas4+waves2+tail7x50"])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_tails_and_launches_of_everything(out_dtype, schedule):
    """A batch, an operand that it shares, C and bias, alpha, a strided result, another stream, a graph."""
    name = "bf16_kk_128x128x64_c1x1_s6_pingpong" + schedule
    a = torch.randint(-2, 3, (3, 200, 1000), device="cuda").bfloat16()
    b = torch.randint(-2, 3, (3, 501, 1000), device="cuda").bfloat16().mT
    c = torch.randint(-9, 9, (3, 200, 501), device="cuda").to(out_dtype)
    bias = torch.randint(-9, 9, (501,), device="cuda").float()
    for right in (b, b[0]):
        want = (2 * c.float() - a.float() @ right.float() + bias).to(out_dtype)
        options = dict(c=c, bias=bias, alpha=-1.0, beta=2.0, config=name, out_dtype=out_dtype)
        assert torch.equal(hopgemm.matmul(a, right, **options), want)
        columns = torch.full((3, 501, 200), CANARY, device="cuda", dtype=out_dtype).mT
        hopgemm.matmul(a, right, out=columns, **options)
        assert torch.equal(columns, want)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph = torch.cuda.CUDAGraph()
            with capture(graph, stream=side):
                first = hopgemm.matmul(a, right, **options)
                second = hopgemm.matmul(a, right, **options)  # its sums only after the first's are added
            for _ in range(3):
                first.zero_(), second.zero_()
                graph.replay()
                assert torch.equal(first, want) and torch.equal(second, want)


def ones(config, m, n, k):
    """Operands of ones that fit a config's dtype and majors."""
    dtype = torch.bfloat16 if config.startswith("bf16") else torch.float16
    majors = config.split("_")[1]
    a = (
        torch.ones(m, k, device="cuda", dtype=dtype)
        if majors[0] == "k"
        else torch.ones(k, m, device="cuda", dtype=dtype).t()
    )
    b = (
        torch.ones(k, n, device="cuda", dtype=dtype)
        if majors[1] == "n"
        else torch.ones(n, k, device="cuda", dtype=dtype).t()
    )
    return a, b


@pytest.mark.parametrize(
    "schedule",
    ["+n8", "+m1", "+m3", "+m8+k8", "+n4+k3", "+m16+k8+ctas128", "+ctas2", "+ctas6+waves2", "+af+bl+df"],
)
@pytest.mark.parametrize(
    "kernel",
    [
        "bf16_kk_128x256x64_c2x1_s4_coop",
        "bf16_kk_64x128x64_c2x1_s8_pingpong",
        "bf16_kk_128x128x64_c2x1_s6_pingpong",
    ],
)
def test_every_walk(kernel, schedule):
    sweep = Sweep()
    for m, n, k in [(1100, 2900, 200), (130, 4100, 136), (4100, 130, 136), (256, 512, 72)]:
        sweep.case(m, n, k, torch.bfloat16, "kk", True, None, kernel + schedule)
    sweep.finish(both_paths=False)


def test_a_tile_names_itself():
    """Row i of a selects row p[i] of b, whose elements are their own coordinates.

    So a wrong tile shows where it came from.
    """
    n = 2048
    p = torch.randperm(n, device="cuda")
    a = torch.zeros(n, n, device="cuda", dtype=torch.float16)
    a[torch.arange(n, device="cuda"), p] = 1
    b = torch.arange(n, device="cuda", dtype=torch.float16).unsqueeze(1) + torch.zeros(
        n, n, device="cuda", dtype=torch.float16
    )
    for config in (c for c in _core.configs() if c.startswith("f16_kn")):
        assert torch.equal(hopgemm.matmul(a, b, config=config)[:, 5], p.half()), config
    for config in (c for c in _core.configs() if c.startswith("f16_kk")):
        assert torch.equal(hopgemm.matmul(a, b.t(), config=config)[7], (a @ b.t())[7]), config


@pytest.mark.parametrize("m, n, k", [(65600, 65600, 8), (8, 8, 2**28 + 8), (65536, 16, 32776)])
def test_beyond_32_bits(m, n, k):
    """More than 2^31 elements, or 2^32 bytes, in the result, along K, in an operand."""
    a, b = (
        torch.zeros(m, k, device="cuda", dtype=torch.bfloat16),
        torch.ones(n, k, device="cuda", dtype=torch.bfloat16).t(),
    )
    rows = sorted({0, 1, m // 2, (2**31 - 1) // max(n, k) % m, (2**31) // max(n, k) % m, m - 1})
    for i, row in enumerate(rows):
        a[row, k - 1 - i] = i + 1
    d = hopgemm.matmul(a, b)
    for i, row in enumerate(rows):
        assert (d[row] == i + 1).all(), row
    assert d.sum(dtype=torch.float64).item() == n * sum(range(1, len(rows) + 1))


def test_a_column_of_a_big_matrix():
    big = torch.zeros(
        16909322, 127, device="cuda", dtype=torch.float16
    )  # its last row lies beyond 2^31 elements
    big[::4096, 5:6] = 1
    v = big[:, 5:6]
    assert hopgemm.matmul(v.t(), v, out_dtype=torch.float32).item() == v.sum(dtype=torch.float64).item()


def test_a_batch_beyond_65535():
    a = (torch.arange(70000, device="cuda") % 7).bfloat16().view(-1, 1, 1).expand(-1, 8, 16).contiguous()
    b = torch.ones(70000, 16, 8, device="cuda", dtype=torch.bfloat16)
    assert torch.equal(hopgemm.matmul(a, b), (a.float() @ b.float()).bfloat16())
