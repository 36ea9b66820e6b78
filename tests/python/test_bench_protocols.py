"""The three ways to time, on a clock that only the fakes move."""

import math
import threading

import pytest

from hopgemm import _bench_protocols as protocols
from hopgemm._bench_meter import Meter, Reading, _smi_meter


class World:
    """One card: everything that happens on it, with the time it happened."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def sleep(self, seconds):
        self.log.append(("sleep", seconds))
        self.now += seconds


class FakeContender:
    """Takes `seconds` a product; a rotation of `multiple` products runs whole."""

    config = ""

    def __init__(self, world, name, seconds, multiple=1):
        self.world, self.name, self.seconds, self.multiple = world, name, seconds, multiple

    def run(self, launches):
        launches = math.ceil(launches / self.multiple) * self.multiple
        elapsed = launches * self.seconds
        self.world.now += elapsed
        self.world.log.append((self.name, launches, elapsed))
        return launches, elapsed


@pytest.fixture
def world():
    return World()


def long_runs(world, least):
    """The stretches of at least so many seconds: who ran."""
    return [name for name, _, elapsed in (e for e in world.log if e[0] != "sleep") if elapsed >= least]


def test_sustained_settles_then_times_each_alone_in_turn(world):
    contenders = [FakeContender(world, "A", 1e-3), FakeContender(world, "B", 2e-3)]
    a, b = protocols.run("sustained", contenders, Meter())
    assert (a.seconds, b.seconds) == pytest.approx((1e-3, 2e-3))
    assert len(a.seconds_each) == len(b.seconds_each) == 3
    assert long_runs(world, protocols.WINDOW_S) == ["A", "B"] * 3
    assert (
        long_runs(world, protocols.SETTLE_S) == ["A", "A", "B", "B"] * 3
    )  # each settles just before its window
    assert a.joules is None


def test_sustained_window_is_full_where_the_kernel_speeds_up(world):
    """An estimate that was too high must not shorten the window."""
    contender = FakeContender(world, "A", 1e-3)
    plain = contender.run

    def run(launches):
        result = plain(launches)
        contender.seconds = max(1e-4, contender.seconds * 0.7)
        return result

    contender.run = run
    before = world.now
    protocols.sustained([contender], Meter())
    assert world.now - before >= 3 * (protocols.SETTLE_S + protocols.WINDOW_S)


def test_sustained_energy(world):
    """700 W, so one product of 2 ms takes 1.4 J; only the last round adds a window of 5 s."""
    meter = Meter(joules=lambda: 700.0 * world.now)
    (result,) = protocols.run("sustained", [FakeContender(world, "A", 2e-3)], meter, energy=True)
    assert result.joules == pytest.approx(1.4)
    assert len(long_runs(world, protocols.ENERGY_WINDOW_S)) == 1


def test_sustained_energy_without_a_counter(world):
    (result,) = protocols.run("sustained", [FakeContender(world, "A", 2e-3)], Meter(), energy=True)
    assert result.joules is None
    assert long_runs(world, protocols.ENERGY_WINDOW_S) == []


def test_burst_rests_before_every_ten_launches(world):
    contenders = [FakeContender(world, "A", 1e-3), FakeContender(world, "B", 3e-3)]
    a, b = protocols.run("burst", contenders, Meter(), sleep=world.sleep)
    assert (a.seconds, b.seconds) == pytest.approx((1e-3, 3e-3))
    timed = world.log[2:]
    assert [entry[:2] for entry in timed] == [("sleep", 1.0), ("A", 10), ("sleep", 1.0), ("B", 10)] * 3


def test_single_alternates_and_takes_the_median(world):
    contenders = [FakeContender(world, "A", 1e-5, multiple=7), FakeContender(world, "B", 2e-5, multiple=7)]
    plain, count = contenders[0].run, [0]

    def sometimes_slow(launches):
        count[0] += 1
        contenders[0].seconds = 1e-3 if count[0] % 4 == 0 else 1e-5
        return plain(launches)

    contenders[0].run = sometimes_slow
    a, b = protocols.run("single", contenders, Meter())
    assert (a.seconds, b.seconds) == pytest.approx((1e-5, 2e-5))
    assert a.spread > 1
    assert b.spread == pytest.approx(0)
    order = [entry[0] for entry in world.log][-22:]
    assert order == ["A", "B"] * 11
    assert all(launches % 7 == 0 for _, launches, _ in world.log)
    assert world.log[-1][2] >= protocols.SAMPLE_S


@pytest.mark.parametrize(("protocol", "rounds"), [("sustained", 5), ("burst", 11), ("single", 1100)])
def test_seconds_buy_rounds(world, protocol, rounds):
    """22 s for two: 5 rounds of 4.4 s, 11 of 2 s, 1100 of 20 ms."""
    contenders = [FakeContender(world, "A", 1e-3), FakeContender(world, "B", 1e-3)]
    results = protocols.run(protocol, contenders, Meter(), seconds=22.001, sleep=world.sleep)
    assert [len(result.seconds_each) for result in results] == [rounds] * 2


def test_readings_are_medians_over_rounds():
    result = protocols.Result(
        readings=[Reading(1400.0, None), Reading(), Reading(1500.0, None), Reading(1410.0, None)]
    )
    assert result.reading("sm_clock_mhz") == 1410.0
    assert result.reading("watts") is None


def test_meter_samples_while_the_block_runs():
    """The clock's median over all samples, the power's over the second half."""
    values = iter([(1900.0, 100.0), (1500.0, 300.0), (1400.0, 690.0), (1450.0, 700.0)])
    done = threading.Event()

    def read():
        value = next(values, None)
        if value is None:
            done.set()
            raise RuntimeError("no more")  # a missed sample is no failure
        return value

    with Meter(read=read, period_s=0.001).sample() as sampling:
        assert done.wait(10)
    assert sampling.value == Reading(1475.0, 695.0)


def test_meter_that_cannot_read():
    with Meter().sample() as sampling:
        pass
    assert sampling.value == Reading()


def test_meter_ends_with_an_exception():
    before = threading.active_count()
    with pytest.raises(KeyError), Meter(read=lambda: (1.0, 1.0)).sample():
        raise KeyError
    assert threading.active_count() == before


def test_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *driver_version*--id=GPU-x*) echo "580.1, 1980, 3201, 700.00";;'
        ' *clocks.sm,power.draw*--id=GPU-x*) echo "1455, 699.50";; *) exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    meter = _smi_meter("GPU-x")
    assert meter.read() == (1455.0, 699.5)
    assert meter.joules() is None
    assert meter.facts == {
        "driver": "580.1",
        "max_sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "power_limit_watts": 700.0,
    }
    assert _smi_meter("GPU-other") is None  # what cannot be asked is no meter
    monkeypatch.setenv("PATH", "/nowhere")
    assert _smi_meter("GPU-x") is None
