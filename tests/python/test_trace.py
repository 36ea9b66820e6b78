"""`hopgemm trace`: from the records of the model, and of made-up GPUs, to figures and files."""

import json
import struct
import subprocess
import sys

import pytest

import hopgemm as package
from hopgemm import _trace, _trace_core
from hopgemm._trace_events import Timeline, about, add_cta, chrome_trace, figures, read_records
from hopgemm._trace_page import page

COOPERATIVE = "bf16_kk_128x256x64_c2x1_s4_coop"
PINGPONG = "bf16_kk_128x128x64_c2x1_s6_pingpong"
WAIT_EMPTY, LOAD_A, LOAD_B, WAIT_FULL, MMA, MMA_WAIT = range(6)
LANDED = 12


@pytest.fixture(scope="module", params=[COOPERATIVE, PINGPONG])
def modelled(request):
    return _trace.trace(1024, 1024, 512, request.param + "+ctas8")


def spans(timeline, name, cta=0):
    return sorted((s for s in timeline.spans if s.name == name and s.cta == cta), key=lambda s: s.begin)


def test_every_step_is_loaded_once_and_multiplied_by_who_should(modelled):
    k_tiles = 8
    consumers = {4, 5}
    for cta in range(8):
        tiles = len(modelled.tiles[cta])
        every = [(t, k) for t in range(tiles) for k in range(k_tiles)]
        assert [(s.tile, s.step) for s in spans(modelled, "load", cta)] == every
        products = spans(modelled, "wgmma", cta)
        if COOPERATIVE in modelled.config:
            for lane in consumers:
                assert [(s.tile, s.step) for s in products if s.lane == lane] == every
        else:
            assert [(s.tile, s.step) for s in products] == every
            assert all(s.lane == 4 + s.tile % 2 for s in products)


def test_a_stage_is_loaded_before_it_is_read_and_read_before_it_is_loaded_again(modelled):
    stages = 4 if COOPERATIVE in modelled.config else 6
    loads, products = spans(modelled, "load"), spans(modelled, "wgmma")
    read = {}
    for s in products:
        read[s.tile, s.step] = max(s.end, read.get((s.tile, s.step), 0))
        (load,) = [x for x in loads if (x.tile, x.step) == (s.tile, s.step)]
        assert load.end <= s.begin and load.place == s.place
    for earlier, later in zip(loads, loads[stages:]):
        assert earlier.place == later.place
        assert read[earlier.tile, earlier.step] <= later.begin


def test_the_tiles_are_those_of_the_product(modelled):
    tiles = [t for own in modelled.tiles for t in own]
    width = 256 if COOPERATIVE in modelled.config else 128
    assert sorted(tiles) == [(m, n) for m in range(0, 1024, 128) for n in range(0, 1024, width)]


def test_figures_of_the_model(modelled):
    f = figures(modelled)
    stages = 4 if COOPERATIVE in modelled.config else 6
    flop_cycles = 2 * 1024 * 1024 * 512 / 4096 / 8
    assert f["ctas"] == 8
    assert f["makespan"] > flop_cycles
    assert 0 < f["tensor_idle"] < 1 - flop_cycles / f["makespan"]
    assert f["max_loads_in_flight"] == stages
    assert 0 <= f["mma_gap"] < 0.01
    assert modelled.lost == modelled.inferred_landings == 0


def test_the_model_is_the_same_every_time():
    one, two = (_trace_core.model(PINGPONG, 300, 500, 130, 4) for _ in range(2))
    assert one == two


def test_stores_leave_each_tile_once(modelled):
    pieces = {COOPERATIVE: 2 * 4, PINGPONG: 2 * 2}[modelled.config.partition("+")[0]]
    for cta in range(8):
        stored = [s.tile for s in spans(modelled, "issue store", cta)]
        assert sorted(stored) == [t for t in range(len(modelled.tiles[cta])) for _ in range(pieces)]


# ---- records made by hand: (begin, end, op, where)


def stream(*records):
    return b"".join(struct.pack("<4I", *(x & 0xFFFFFFFF for x in r)) for r in records)


def by_hand(watcher, clocks=None, start=0, drain=()):
    """Two steps of one tile in a ring of two, in one CTA whose second consumer is idle."""
    producer = [(start, start + 10, WAIT_EMPTY, 0), (start + 10, start + 12, LOAD_A, 0)]
    producer += [(start + 12, start + 14, LOAD_B, 0), (start + 14, start + 15, WAIT_EMPTY, 1)]
    producer += [(start + 20, start + 21, LOAD_A, 1), (start + 21, start + 22, LOAD_B, 1)]
    consumer = [(start + 5, start + 110, WAIT_FULL, 0), (start + 110, start + 115, MMA, 0)]
    consumer += [(start + 115, start + 150, WAIT_FULL, 1), (start + 150, start + 152, MMA, 1)]
    consumer += [(start + 152, start + 200, MMA_WAIT, 1), (start + 200, start + 300, MMA_WAIT, 0)]
    streams = [stream(*consumer), b"", stream(*producer, *drain), stream(*watcher)]
    (roles,) = read_records(streams, clocks)
    timeline = Timeline("by hand", "cycles", True, "", (1, 1, 128), tiles=[[(0, 0)]])
    add_cta(timeline, 0, roles, k_tiles=2, cooperative=True)
    return timeline


def landed(*times):
    return [(t, t, LANDED, i % 2) for i, t in enumerate(times)]


def test_what_is_in_flight():
    timeline = by_hand(landed(100, 140))
    assert [(s.begin, s.end, s.place) for s in spans(timeline, "load")] == [(10, 100, 0), (20, 140, 1)]
    assert [(s.begin, s.end) for s in spans(timeline, "wgmma")] == [(110, 200), (200, 300)]
    f = figures(timeline)
    assert f["makespan"] == 300
    assert f["tensor_idle"] == pytest.approx(110 / 300)
    assert (f["mma_gap"], f["max_loads_in_flight"]) == (0, 2)
    assert f["wait_full"] == pytest.approx((105 + 35) / 600)
    assert f["wait_empty"] == pytest.approx(11 / 300)
    assert timeline.inferred_landings == 0


def test_the_drain_of_the_ring_is_of_no_tile():
    timeline = by_hand(landed(100, 140), drain=[(30, 250, WAIT_EMPTY, 0), (250, 290, WAIT_EMPTY, 1)])
    waits = spans(timeline, "wait for empty")
    assert [(s.tile, s.step) for s in waits] == [(0, 0), (0, 1), (-1, -1), (-1, -1)]
    assert figures(timeline) == figures(by_hand(landed(100, 140)))
    chrome_trace(timeline, ctas=1)


def test_a_watcher_that_polls_may_be_a_little_late():
    timeline = by_hand(landed(100, 170))
    assert spans(timeline, "load")[1].end == 150
    assert timeline.inferred_landings == 0


@pytest.mark.parametrize("watched", [(), (100,), (100, 400), (100, 15)])
def test_a_landing_that_was_not_seen_is_bounded_by_the_wait_and_counted(watched):
    timeline = by_hand(landed(*watched))
    assert spans(timeline, "load")[1].end == 150
    assert timeline.inferred_landings == 2 - min(len(watched), 1)


def test_clocks_become_nanoseconds_and_wrap():
    """2 cycles a nanosecond, and a lower half that wraps within the launch."""
    start = (7 << 32) - 100
    timeline = by_hand(
        landed(start + 100, start + 140), clocks=[(5000, start), (6000, start + 2000)], start=start
    )
    assert [(s.begin, s.end) for s in spans(timeline, "load")] == [(5, 50), (10, 70)]


def test_a_record_before_the_first_clock():
    (roles,) = read_records([stream((90, 110, WAIT_FULL, 0)), b"", b"", b""], [(5000, 100), (5010, 110)])
    assert (roles[0][0].begin, roles[0][0].end) == (-10, 10)


# ---- files and the command


def test_chrome_trace(modelled):
    trace = json.loads(json.dumps(chrome_trace(modelled, ctas=2)))
    events = trace["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in events} == {0, 1}
    assert {e["ph"] for e in events} == {"M", "X"}
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in complete)
    assert len(complete) == sum(s.cta < 2 for s in modelled.spans)
    load = next(e for e in complete if e["name"] == "load")
    assert load["args"] == {"stage": 0, "tile": list(modelled.tiles[load["pid"]][0]), "step": 0}
    assert trace["otherData"] == json.loads(json.dumps(about(modelled)))


def test_the_page_holds_all_it_needs(modelled):
    text = page(modelled, ctas=3)
    assert "/*DATA*/" not in text
    assert "://" not in text  # nothing is fetched
    start = text.index("const data = ") + len("const data = ")
    data, _ = json.JSONDecoder().raw_decode(text[start:])
    assert len(data["ctas"]) == len(data["tiles"]) == 3
    assert sum(map(len, data["ctas"])) == sum(s.cta < 3 for s in modelled.spans)
    assert data["about"]["measured"] is False and "not measured" in data["about"]["source"]


def hopgemm(*arguments, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "hopgemm", "trace", *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_command(tmp_path):
    for name in ("t.html", "t.json"):
        text = hopgemm(512, 512, 256, "--config", PINGPONG, "--model", "--out", tmp_path / name)
        assert "not measured" in text and name in text
        assert (tmp_path / name).stat().st_size > 1000
    found = json.loads(hopgemm(512, 512, 256, "--config", PINGPONG, "--model", "--json"))
    assert found["shape"] == [512, 512, 256]
    assert found["figures"]["makespan"] > 0


@pytest.mark.parametrize("config", ["", COOPERATIVE, COOPERATIVE + "+m4+ctas128+waves1"])
def test_what_takes_several_launches_is_traced_as_one(config):
    assert package.plan(m=4096, n=7168, k=16384, config=config or None).launches > 1
    plan = _trace._plan(4096, 7168, 16384, config, None)
    assert plan["launches"] == 1 and plan["grid"] == 128
    assert plan["config"] == COOPERATIVE + ("+m4" if "m4" in config else "") + "+ctas128"


def test_command_for_the_order():
    text = hopgemm(2048, 2048, 512, "--order", "--config", COOPERATIVE)
    assert "Hilbert curve" in text and "modelled" in text
    found = json.loads(hopgemm(2048, 2048, 512, "--order", "--config", COOPERATIVE, "--json"))
    assert {"name", "panels", "dram_gb", "l2_hit_rate"} == set(found["orders"][0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((512, 512, 256, "--out", "t.txt"), "must end in .html or .json"),
        ((512, 512, 256, "--ctas", -1), "--ctas must be 0 or more"),
        ((512, 512, 100), "K a multiple of 8"),
        ((0, 512, 256), "is not one launch"),
        ((512, 512, 256, "--config", "nothing"), "config is 'nothing'"),
        ((512, 512, 256, "--config", COOPERATIVE.replace("kk", "kn")), "does not fit"),
    ],
)
def test_a_wrong_command_line_is_2(arguments, message):
    assert message in hopgemm(*arguments, "--model", status=2)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [COOPERATIVE, PINGPONG])
def test_measured(config):
    timeline = _trace.trace(2048, 2048, 1024, config, device=0)
    assert timeline.measured and timeline.unit == "ns" and timeline.lost == 0
    f = figures(timeline)
    assert 0 < f["tensor_idle"] < 1
    assert 1 <= f["max_loads_in_flight"] <= 6
    loads = [s for s in timeline.spans if s.name == "load"]
    assert len(loads) == 16 * sum(map(len, timeline.tiles))
    assert all(s.begin <= s.end for s in timeline.spans)
    # A watcher that slipped would miss all that follows.
    assert timeline.inferred_landings < 0.05 * len(loads)


@pytest.mark.gpu
def test_measured_with_too_little_room():
    timeline = _trace.trace(1024, 1024, 1024, COOPERATIVE, device=0, records=20)
    assert timeline.lost > 0


@pytest.mark.gpu
def test_only_what_has_a_traced_build_is_measured():
    with pytest.raises(ValueError, match="no traced build of"):
        _trace.trace(1024, 1024, 1024, "bf16_kk_64x128x64_c1x1_s8_pingpong", device=0)
