"""`hopgemm bench` without a GPU: a fake rig whose products take a known time."""

import contextlib
import json
import threading

import pytest

from hopgemm import _bench, _bench_protocols
from hopgemm._bench import Roofs, Session, Task, protocol_of
from hopgemm._bench_case import Check, bytes_moved, error_bound, rotation_sets, sample_rows
from hopgemm._bench_meter import Meter
from hopgemm._bench_results import Results, load, merge, save

HEADER = {"commit": "abc", "gpu": "NVIDIA H200", "driver": "580", "torch": "2.11", "jax": None}


class FakeContender:
    timing = "none"

    def __init__(self, name, config, seconds, check=Check(True, 0.5)):
        self.name, self.config, self.seconds, self._check = name, config, seconds, check

    def run(self, launches):
        return launches, launches * self.seconds

    def check(self):
        return self._check


class FakeRig:
    """cuBLAS: 2 ms by one backend, 1 ms by the other; hopgemm: 0.8 ms, batch_invariant by the same kernel."""

    name, uuid = "torch", "GPU-1"

    def __init__(self, ours=Check(True, 0.5)):
        self.asked, self.released, self.ours = [], 0, ours

    def case(self, shape, dtype, layout, graph):
        self.asked.append((shape, dtype, layout, graph))
        return self

    def baselines(self):
        return [FakeContender("cublas", "cublas", 2e-3), FakeContender("cublas", "cublaslt", 1e-3)]

    def chosen(self, config, batch_invariant):
        return config or "chosen"

    def hopgemm(self, config, batch_invariant=False):
        if config == "impossible":
            raise ValueError("config impossible: cannot run this shape")
        if batch_invariant:
            return FakeContender("batch_invariant", "another", 1.6e-3)
        return FakeContender("hopgemm", config or "chosen", 0.8e-3, self.ours)

    def release(self):
        self.released += 1


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The burst's rest is not worth waiting for."""
    monkeypatch.setattr(_bench_protocols, "REST_S", 0.0)


ROOFS = Roofs(4e12, 900e12, 840e12)


def session(task, rig, path=None, roofs=ROOFS):
    return Session(task, rig, Meter(), roofs, 132, Results(HEADER, path))


SHAPE = (1024, 1024, 2048)
FLOPS = 2.0 * 1024 * 1024 * 2048


def test_records(tmp_path):
    path, lines = tmp_path / "new" / "r.json", []
    rig = FakeRig()
    assert session(Task([SHAPE]), rig, path).measure(lines.append)
    assert rig.asked == [(SHAPE, "bf16", "kk", True)]
    assert rig.released == 1
    cublas, ours, invariant = load(path)["records"]
    assert invariant == {**ours, "contender": "batch_invariant"}  # measured once
    assert (ours["measured_as"], ours["timing"], ours["card"]) == ("hopgemm", "none", "GPU-1")
    assert (cublas["contender"], cublas["config"]) == ("cublas", "cublaslt")  # the faster backend, recorded
    assert (ours["contender"], ours["config"], ours["requested"]) == ("hopgemm", "chosen", "")
    assert ours["tflops"] == pytest.approx(FLOPS / 0.8e-3 / 1e12)
    assert ours["ratio_to_cublas"] == pytest.approx(1.25)
    assert cublas["ratio_to_cublas"] == 1.0
    assert ours["correct"] is True
    for record in (cublas, ours):
        group = [record[name] for name in ("shape", "dtype", "layout", "protocol", "framework")]
        assert group == ["1024x1024x2048", "bf16", "kk", "single", "torch"]
        assert record["ratio_to_roof"] == pytest.approx(record["tflops"] / 900)
        unknown = ("sm_clock_mhz", "watts", "mj_per_tflop", "utilisation", "error")
        assert [record[name] for name in unknown] == [None] * 5
    assert len(lines) == 3
    assert "1.250 of cuBLAS" in lines[1]


def test_batch_invariant_by_another_kernel_is_measured():
    rig = FakeRig()
    rig.chosen = lambda config, batch_invariant: f"{config} {batch_invariant}"
    work = session(Task([SHAPE]), rig)
    assert work.measure(lambda line: None)
    record = work.results.records[2]
    assert (record["contender"], record["measured_as"]) == ("batch_invariant", "batch_invariant")
    assert record["ratio_to_cublas"] == pytest.approx(0.625)
    assert session(Task([SHAPE], configs=("x",)), rig).task.wanted() == {("cublas", ""), ("hopgemm", "x")}


def test_peers_are_beside_us_and_their_failures_are_theirs():
    def missing(case):
        raise ModuleNotFoundError("No module named 'quack'")

    def bad_launch(case):
        contender = FakeContender("pallas", "", 1e-3)
        contender.check = lambda: 1 / 0
        return contender

    peers = {
        "triton": lambda case: FakeContender("triton", "128x256x64", 2e-3, Check(False, 9.0)),
        "quack": missing,
        "pallas": bad_launch,
    }
    task = Task([SHAPE], peers=peers)
    work = session(task, FakeRig())
    assert work.measure(lambda line: None)  # the run is good
    found = {r["contender"]: r for r in work.results.records}
    assert found.keys() == {"cublas", "hopgemm", "batch_invariant", *peers}
    assert found["triton"]["ratio_to_cublas"] == pytest.approx(0.5)
    assert found["triton"]["correct"] is False
    assert found["quack"]["error"] == "ModuleNotFoundError: No module named 'quack'"
    assert found["pallas"]["error"].startswith("ZeroDivisionError")
    assert found["hopgemm"]["error"] is None
    assert task.wanted() >= {("quack", ""), ("batch_invariant", "")}


@pytest.mark.parametrize("layout", ["training-nk", "training-kn"])
def test_a_training_step_is_three_products(layout):
    rig = FakeRig()
    work = session(Task([SHAPE], layout=layout), rig)
    assert work.measure(lambda line: None)
    assert rig.asked == [(SHAPE, "bf16", layout, False)]
    ours = work.results.records[1]
    assert (ours["layout"], ours["protocol"]) == (layout, "sustained")
    assert ours["tflops"] == pytest.approx(3 * FLOPS / 0.8e-3 / 1e12)
    assert ours["ratio_to_roof"] == pytest.approx(3 * FLOPS / 840e12 / 0.8e-3)
    assert ours["mj_per_tflop"] is None


def test_energy_is_read_in_one_layout_only():
    """Two windows of 5 s a square would cost too much in each."""
    for layout, read in (("kk", True), ("kn", False)):
        asked = []
        meter = Meter(joules=lambda: asked.append(1) or 1.0)
        work = Session(
            Task([(4096, 4096, 4096)], layout=layout), FakeRig(), meter, ROOFS, 132, Results(HEADER)
        )
        work.measure(lambda line: None)
        assert bool(asked) == read


class PatientMeter(Meter):
    """Does not stop before it has read once: the fake products take no time at all."""

    @contextlib.contextmanager
    def sample(self):
        once = threading.Event()

        def read():
            once.set()
            return self.read()

        with Meter(read=read, period_s=1e-4).sample() as sampling:
            yield sampling
            assert once.wait(10)


def test_clock_power_and_energy():
    """4096^3 in 0.8 ms is 171.8 TFLOP/s; at 1500 MHz the pipes could do 811; 100 W for 0.8 ms is 0.08 J."""
    meter = PatientMeter(read=lambda: (1500.0, 100.0), joules=iter([0.0, 0.0, 0.0, 500.0]).__next__)
    rig = FakeRig()
    work = Session(Task([(4096, 4096, 4096)]), rig, meter, ROOFS, 132, Results(HEADER))
    assert work.measure(lambda line: None)
    assert rig.asked[0][3] is False  # sustained launches eagerly
    ours = work.results.records[1]
    tflops = 2.0 * 4096**3 / 0.8e-3 / 1e12
    assert (ours["protocol"], ours["sm_clock_mhz"], ours["watts"]) == ("sustained", 1500.0, 100.0)
    assert ours["utilisation"] == pytest.approx(tflops / (0.540672 * 1500))
    # 500 J over the 5 s window of 6250 products
    assert ours["mj_per_tflop"] == pytest.approx(500 / 6250 * 1e3 / (2.0 * 4096**3 / 1e12))


def test_a_wrong_result_fails_the_run():
    lines = []
    work = session(Task([SHAPE]), FakeRig(ours=Check(False, 7.0)))
    assert not work.measure(lines.append)
    assert work.results.records[1]["correct"] is False
    assert "WRONG" in lines[1]
    assert "WRONG" not in lines[0]


def test_a_config_that_cannot_run_leaves_the_others():
    work = session(Task([SHAPE], configs=("impossible", "good")), FakeRig())
    assert not work.measure(lambda line: None)
    found = {r["requested"]: r for r in work.results.records if r["contender"] == "hopgemm"}
    assert found["impossible"]["tflops"] is None
    assert "cannot run" in found["impossible"]["error"]
    assert found["good"]["ratio_to_cublas"] == pytest.approx(1.25)


def test_resuming_skips_what_is_done(tmp_path):
    path = tmp_path / "r.json"
    first = FakeRig()
    session(Task([SHAPE]), first, path).measure(lambda line: None)
    again = FakeRig()
    lines = []
    shapes = [SHAPE, (64, 64, 64)]
    assert session(Task(shapes), again, path).measure(lines.append)
    assert [asked[0] for asked in again.asked] == [(64, 64, 64)]
    assert "already there" in lines[0]
    assert len(load(path)["records"]) == 6
    for task in (Task([SHAPE], dtype="fp16"), Task([SHAPE], layout="kn"), Task([SHAPE], configs=("x",))):
        other = FakeRig()
        session(task, other, path).measure(lambda line: None)
        assert len(other.asked) == 1  # another question


def test_failures_are_tried_again(tmp_path):
    path = tmp_path / "r.json"
    session(Task([SHAPE], configs=("impossible",)), FakeRig(), path).measure(lambda line: None)
    rig = FakeRig()
    rig.hopgemm = lambda config, batch_invariant=False: FakeContender("hopgemm", config, 1e-3)
    assert session(Task([SHAPE], configs=("impossible",)), rig, path).measure(lambda line: None)
    assert [r["error"] for r in load(path)["records"]] == [None, None]


def test_every_shape_is_saved_before_the_next(tmp_path):
    path = tmp_path / "r.json"
    rig = FakeRig()
    plain = rig.case

    def case(shape, *rest, **options):
        if shape == (2, 2, 2):
            raise KeyboardInterrupt
        return plain(shape, *rest, **options)

    rig.case = case
    with pytest.raises(KeyboardInterrupt):
        session(Task([SHAPE, (2, 2, 2)]), rig, path).measure(lambda line: None)
    assert len(load(path)["records"]) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("name", ["commit", "gpu", "driver", "torch"])
def test_a_file_from_elsewhere_is_refused(tmp_path, name):
    path = tmp_path / "r.json"
    save(path, {"header": {**HEADER, name: "other"}, "records": []})
    with pytest.raises(ValueError, match=f"{name} 'other'.*Name another"):
        Results(HEADER, path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"records": []}', "\xff"])
def test_a_file_that_is_none_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="r.json: not a file of benchmark results"):
        Results(HEADER, path)
    assert path.read_bytes() == text.encode("latin-1")


def test_merge(tmp_path):
    paths = [tmp_path / f"{i}.json" for i in range(3)]
    session(Task([SHAPE]), FakeRig(), paths[0]).measure(lambda line: None)
    session(Task([SHAPE, (64, 64, 64)]), FakeRig(), paths[1]).measure(lambda line: None)
    merged = merge(paths[:2])
    assert len(merged["records"]) == 6
    assert merged["header"] == HEADER
    save(paths[2], {"header": {**HEADER, "commit": "def"}, "records": []})
    with pytest.raises(ValueError, match="0.json has commit 'abc', .*2.json 'def'"):
        merge(paths)


def test_auto_protocol():
    assert protocol_of((4096, 4096, 4096), "auto") == "sustained"  # a big square
    assert protocol_of((8192, 8192, 8192), "auto") == "sustained"
    assert protocol_of((8192, 50257, 768), "auto") == "single"  # 0.96 ms at 660 TFLOP/s
    assert protocol_of((8192, 28672, 4096), "auto") == "sustained"
    assert protocol_of((1024, 1024, 1024), "auto") == "single"
    assert protocol_of((1024, 1024, 1024), "burst") == "burst"
    assert protocol_of((4096, 4096, 4096), "auto", "training-nk") == "sustained"
    assert protocol_of((64, 64, 64), "auto", "training-kn") == "sustained"


def test_roofs():
    small, big = (16, 4096, 14336), (8192, 8192, 8192)
    for protocol in ("single", "burst", "sustained"):
        assert ROOFS.seconds(small, "kk", protocol) == pytest.approx(bytes_moved(small) / 4e12)
    assert (
        ROOFS.seconds(big, "kk", "burst")
        == ROOFS.seconds(big, "kk", "single")
        == pytest.approx(2.0 * 8192**3 / 900e12)
    )
    assert ROOFS.seconds(big, "kk", "sustained") == pytest.approx(2.0 * 8192**3 / 840e12)


def test_rotation_outruns_the_l2():
    l2 = 60 << 20
    for shape in ((512, 512, 512), (16, 4096, 14336), (8192, 8192, 8192), (1, 2112, 7168)):
        sets = rotation_sets(shape, l2)
        m, n, k = shape
        assert sets >= 2
        assert sets * 2 * k * (m + n) >= 2 * l2
        assert sets == 2 or (sets - 1) * 2 * k * (m + n) < 2 * l2


@pytest.mark.parametrize("m", [1, 2, 7, 127, 128, 129, 4097])
def test_rows_that_are_checked(m):
    rows = sample_rows(m)
    assert rows == sorted(set(rows))
    assert rows[0] == 0
    assert rows[-1] == m - 1
    assert len(rows) <= 10


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_error_bound_is_tight_and_kept(dtype):
    """One rounding of an exact product is inside; the next value but one is not."""
    numpy = pytest.importorskip("numpy")
    types = pytest.importorskip("ml_dtypes")
    kind = types.bfloat16 if dtype == "bf16" else numpy.float16
    random = numpy.random.default_rng(0)
    a, b = (random.standard_normal((64, 64)).astype(kind).astype("float64") for _ in range(2))
    exact = a @ b
    rounded = exact.astype(kind).astype("float64")
    bound = error_bound(abs(exact), abs(a) @ abs(b), 64, dtype)
    assert (abs(rounded - exact) <= bound).all()
    off = rounded * (1 + 4 * numpy.finfo(numpy.float16).eps if dtype == "fp16" else 1 + 2**-6)
    assert (abs(off - exact) > bound).mean() > 0.9


def test_no_framework(monkeypatch):
    monkeypatch.setattr(_bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="torch or jax is not installed"):
        _bench._open_rig("auto")
    with pytest.raises(RuntimeError, match="bench: jax is not installed"):
        _bench._open_rig("jax")


def test_results_are_plain_json(tmp_path):
    path = tmp_path / "r.json"
    session(Task([SHAPE]), FakeRig(), path).measure(lambda line: None)
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
