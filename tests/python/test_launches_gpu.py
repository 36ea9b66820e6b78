"""Launches in a row: each may begin before the one before it is done (programmatic dependent launch), and a
CTA of a cluster may end while its peers still work. Every kernel, in CUDA graphs: launches lie closest there.
"""

import contextlib
import math

import pytest

torch = pytest.importorskip("torch")

from torch_cases import assert_same, capture, gpu_events, integers  # noqa: E402

from hopgemm import _core, plan  # noqa: E402
from hopgemm.torch import matmul  # noqa: E402

pytestmark = pytest.mark.gpu


def configs(layout, a, b):
    """Every kernel for these bf16 operands, with each way to part its K, and in several launches."""
    for name in _core.configs():
        if not name.startswith(f"bf16_{layout}_"):
            continue
        yield name
        tiles = plan(a, b, config=name).tiles
        parts = [f"+tail{tiles}x{2 * tiles}", f"+tail1x{math.ceil(a.shape[1] / 64)}"]
        if name.endswith("_swap"):
            parts = ["+split2", "+split4", "+ctas4+waves1+split2"]
        else:
            parts += ["+ctas2+waves1", f"+ctas2+waves2+tail1x{math.ceil(a.shape[1] / 64)}"]
        for part in parts:
            with contextlib.suppress(ValueError):  # fewer steps of K, or CTAs of a cluster, than it wants
                plan(a, b, config=name + part)
                yield name + part


def captured(launches, launch):
    """A graph of so many launches; all that is made once has been made."""
    launch(0), launch(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        for i in range(launches):
            launch(i)
    return graph


@pytest.mark.parametrize("layout", ["kk", "kn", "mn"])
@pytest.mark.parametrize("rows", [40, 296])
def test_chains(rows, layout):
    """A permutation, over and over: each launch reads what the last one wrote and overwrites what it read."""
    size, steps, replays = 264, 24, 10
    order = torch.randperm(size, generator=torch.Generator().manual_seed(5))
    permute = torch.eye(size)[order].to("cuda", torch.bfloat16)  # permute @ x takes the rows of x in `order`
    final = order
    for _ in range(steps * replays - 1):
        final = order[final]
    start = integers(size, rows, device="cuda") if layout == "mn" else integers(rows, size, device="cuda")
    for config in configs(layout, *operands(layout, start, permute)):
        x = [start.clone(), torch.empty_like(start)]

        def launch(i, x=x, config=config):
            a, b = operands(layout, x[i % 2], permute)
            matmul(a, b, out=x[1 - i % 2], config=config)

        graph = captured(steps, launch)
        x[0].copy_(start)
        for _ in range(replays):
            graph.replay()
        assert_same(x[0], start[final] if layout == "mn" else start[:, final], config)


@pytest.mark.parametrize("rows", [40, 296])
@pytest.mark.parametrize("added", ["c", "bias"])
def test_chains_of_what_is_added(added, rows):
    """Each launch adds what the last one wrote: all of it as c, or its first row as the bias."""
    size, steps, replays = 264, 24, 10
    a, b = integers(rows, size, device="cuda"), integers(size, size, device="cuda")
    product = a.double() @ b.double()
    rest = (steps * replays - 1) * (product if added == "c" else product[:1])
    for config in configs("kn", a, b):
        x = [torch.zeros(rows, size, device="cuda") for _ in range(2)]

        def launch(i, x=x, config=config):
            last = {"c": x[i % 2], "beta": 1.0} if added == "c" else {"bias": x[i % 2][0]}
            matmul(a, b, out=x[1 - i % 2], config=config, **last)

        graph = captured(steps, launch)
        x[0].zero_()
        for _ in range(replays):
            graph.replay()
        assert_same(x[0], (product + rest).float(), config)


def operands(layout, x, permute):
    """Whose product permutes x: its rows where x is B (mn), else its columns."""
    if layout == "mn":
        return permute.t().contiguous().t(), x
    columns = permute.t()  # x @ columns
    return x, columns if layout == "kk" else columns.contiguous()


@pytest.mark.parametrize("config", [None, "bf16_kk_128x256x64_c2x1_s4_coop+ctas64+waves3"])
def test_as_many_launches_as_planned(tmp_path, config):
    a, b = integers(4096, 16384, device="cuda"), integers(7168, 16384, device="cuda").t()
    planned = plan(a, b, config=config)
    assert planned.launches > 1
    d = matmul(a, b, config=config)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        matmul(a, b, out=d, config=config)
        torch.cuda.synchronize()
    grids = [e["args"]["grid"] for e in gpu_events(profile, tmp_path)[1]]
    assert grids == [[planned.grid, 1, 1]] * planned.launches
    rows = torch.arange(0, 4096, 61, device="cuda")
    assert_same(d[rows], (a[rows].float() @ b.float()).bfloat16(), planned.config)


@pytest.mark.parametrize("layout", ["kk", "kn", "mk", "mn"])
@pytest.mark.parametrize("k", [8, 200])
def test_thousands(k, layout):
    """Short products, tens of thousands of each kernel: whatever happens once in a while as a CTA ends."""
    m, n = 296, 520
    a = integers(m, k, device="cuda") if layout[0] == "k" else integers(k, m, device="cuda").t()
    b = integers(n, k, device="cuda").t() if layout[1] == "k" else integers(k, n, device="cuda")
    want = (a.double() @ b.double()).bfloat16()
    for config in configs(layout, a, b):
        d = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        graph = captured(200, lambda _, d=d, config=config: matmul(a, b, out=d, config=config))
        for _ in range(50):
            graph.replay()
        torch.cuda.synchronize()  # an error belongs to this kernel
        assert_same(d, want, config)
