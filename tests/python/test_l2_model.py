"""The L2 model (`hopgemm/_l2_model.py`) and the orders of tiles (`_tile_order.py`)."""

import pathlib
import runpy

import pytest

from hopgemm import _trace_core
from hopgemm._l2_model import Block, Walk, traffic
from hopgemm._tile_order import compare, hilbert, mean_panels, rows, scheduled, strips

KERNEL = "bf16_kk_128x256x64_c2x1_s4_coop"

# docs/notes/2026-11-29-tile-order.md: ncu on an H200 at 8192^3. schedule, CTAs, GB read from DRAM.
MEASURED = [
    ("", 132, 1.20),
    ("", 128, 1.07),
    ("+k8", 128, 0.957),
    ("+k8+df", 128, 0.947),
    ("+k8", 132, 1.29),
    ("+m6+k8", 132, 1.35),
    ("+k8+af+df", 128, 1.80),
]


def predicted(schedule, ctas):
    return traffic(scheduled(KERNEL + schedule, 8192, 8192, 8192, ctas)).dram / 1e9


@pytest.mark.parametrize(("schedule", "ctas", "gigabytes"), MEASURED)
def test_within_4_percent_of_what_was_measured(schedule, ctas, gigabytes):
    assert predicted(schedule, ctas) == pytest.approx(gigabytes, rel=0.04)


def test_schedules_rank_as_measured():
    by_model = sorted(MEASURED, key=lambda x: predicted(*x[:2]))
    assert by_model == sorted(MEASURED, key=lambda x: x[2])


def one(order, pool, k=256, l2_bytes=1 << 40, **settings):
    return traffic(Walk(order, pool, 256, 256, k, **settings), l2_bytes)


def test_a_cache_that_holds_everything_reads_each_operand_once():
    found = one(rows(6, 5), pool=4)
    panel = 256 * 256 * 2
    assert found.dram == (6 + 5) * panel
    assert found.requested == 6 * 5 * 2 * panel
    assert found.hit_rate == 1 - 11 / 60


def test_a_cache_that_holds_nothing_reads_what_is_requested():
    found = one(rows(3, 3), pool=1, l2_bytes=2)
    assert found.dram == found.requested


def test_turning_k_meets_what_was_left():
    """Two tiles one after the other with A shared; half of each panel fits."""
    k, panel = 16 * 64, 256 * 16 * 64 * 2
    forward = one([Block(0, 0), Block(0, 1)], 1, k, l2_bytes=2 * panel)
    turned = one([Block(0, 0), Block(0, 1, reversed=True)], 1, k, l2_bytes=2 * panel)
    assert forward.dram == 4 * panel
    assert turned.dram == 3.75 * panel


def test_mean_panels_of_the_lecture():
    """8 x 8 tiles, 8 of them in flight: row 9.86, grouped 7.02, Hilbert 6.67 (seeds, the lecture)."""
    assert round(mean_panels(rows(8, 8), 8), 2) == 9.86
    assert round(mean_panels(strips(8, 8, 4), 8), 2) == 7.02
    assert round(mean_panels(hilbert(8, 8), 8), 2) == 6.67
    for strip, panels in (("+m4", 6.89), ("+m3", 6.56)):  # ours, to and fro
        walk = scheduled("bf16_kk_128x128x64_c1x1_s6_pingpong" + strip, 1024, 1024, 64, 8)
        assert round(mean_panels(walk.order, 8), 2) == panels


@pytest.mark.parametrize("grid", [(1, 1), (3, 5), (8, 2), (7, 7)])
def test_orders_visit_every_tile_once(grid):
    every = sorted(rows(*grid))
    assert sorted(strips(*grid, 3)) == every
    assert sorted(hilbert(*grid)) == every
    m, n = grid[0] * 256 - 5, grid[1] * 256 - 250
    walk = scheduled(KERNEL + "+n2", m, n, 64, 8)
    assert sorted((b.m, b.n) for b in walk.order) == [(b.m, b.n) for b in every]


def test_the_schedule_is_the_scheduler_s():
    walk = scheduled(KERNEL + "+n3+k2+bl", 1024, 2048, 64, 8)
    assert (walk.pool, walk.tile_m, walk.tile_n, walk.policies) == (4, 256, 256, ("n", "l", "n"))
    assert any(b.reversed for b in walk.order) and not all(b.reversed for b in walk.order)
    to_and_fro = [(b.m, b.n) for b in walk.order]
    assert to_and_fro[:4] == [(0, 0), (1, 0), (2, 0), (0, 1)]
    assert to_and_fro[-1] == (3, 0)  # the second strip comes back


def test_compare():
    orders = {o.name: o for o in compare(KERNEL, 4096, 4096, 4096, 128)}
    own = orders[f"the kernel's: {KERNEL}"]
    assert own.panels < orders["strips of 8"].panels < orders["row by row"].panels
    assert 0.067 < own.dram_gb < orders["row by row"].dram_gb
    assert 0 < orders["row by row"].l2_hit_rate < own.l2_hit_rate < 1


@pytest.mark.parametrize("config", ["", "nothing", KERNEL + "+q3", KERNEL.replace("kk", "mn")])
def test_an_unknown_config(config):
    with pytest.raises(ValueError, match="cannot be traced. Take a kk kernel"):
        _trace_core.tile_order(config, 64, 64)


def test_sizes_out_of_range():
    with pytest.raises(ValueError, match="M and N are 0 and 64"):
        _trace_core.tile_order(KERNEL, 0, 64)


def test_the_script_ranks_schedules(monkeypatch, capsys):
    folder = pathlib.Path(__file__).parents[2] / "benchmarks"
    if not folder.is_dir():
        pytest.skip("benchmarks/ is not beside the tests")
    monkeypatch.setattr("sys.argv", ["l2_model.py", "1024", "1024", "512", "--best", "3", "--step-k", "256"])
    runpy.run_path(str(folder / "l2_model.py"), run_name="__main__")
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert "compulsory 0.002 GB" in head and columns.split() == ["GB", "read", "waves", "schedule"]
    read = [float(row.split()[0]) for row in rows]
    assert len(rows) == 3 and read == sorted(read) and read[0] >= 0.002
