"""Where JAX asks for tuning; which entries count in several processes; on a Hopper GPU what comes of it."""

import contextlib
import socket
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import hopgemm  # noqa: E402
import hopgemm.jax  # noqa: E402
from hopgemm import _cache, _core, _tune, _tune_agreement, _tune_jax  # noqa: E402

CONFIG = "bf16_kk_128x128x64_c2x1_s6_pingpong+n8"
KEY = _cache.Key("bfloat16", "bfloat16", "kk", 4096, 4096, 4096, 1, 1, 132, False)


def entry():
    return _cache.Tuned(
        "NVIDIA H200", _core.driver_version(), _cache.version(), KEY, CONFIG, 1.0, CONFIG, 2.0
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPGEMM_CACHE", str(tmp_path / "tuned.json"))
    monkeypatch.setattr(_cache, "_in_force", {})
    monkeypatch.setattr(_cache, "_frozen", False)
    monkeypatch.setattr(_tune, "_tried", set())
    monkeypatch.setattr(_tune_agreement, "_outcome", None)
    yield
    _core.set_tuned([])


@pytest.fixture
def asked(monkeypatch):
    calls = []
    monkeypatch.setattr(_tune_jax, "before_dot_general", lambda *arguments: calls.append(arguments))
    return calls


def test_only_inside_the_block(asked):
    a = jnp.ones((16, 16), jnp.bfloat16)
    hopgemm.matmul(a, a)
    with hopgemm.autotune():
        assert hopgemm.matmul(a, a)[0, 0] == 16
        hopgemm.jax.dot_general(a, a, (((1,), (1,)), ((), ())))
    assert len(asked) == 2


def test_cpu_arrays_and_traces_are_left_alone(monkeypatch):
    searched = []
    monkeypatch.setattr(_tune_jax._tune, "at_first_use", lambda *arguments: searched.append(arguments))
    a = jnp.ones((16, 16), jnp.bfloat16)
    with hopgemm.autotune():
        hopgemm.matmul(a, a)
        jax.jit(hopgemm.matmul)(a, a)
        jax.grad(lambda x: hopgemm.matmul(x, a).astype(jnp.float32).sum())(a)
        hopgemm.matmul(jnp.ones((2, 16, 16), jnp.bfloat16), jnp.ones((2, 16, 16), jnp.bfloat16))
    assert searched == []


WIDE = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)


def product():
    """A new function each time: jit keeps what it lowered."""
    return lambda x, y: hopgemm.jax.dot_general(x, y, (((1,), (1,)), ((), ())))


@contextlib.contextmanager
def on(target):
    saved, hopgemm.jax.target = hopgemm.jax.target, target
    try:
        yield
    finally:
        hopgemm.jax.target = saved


def lowered(target):
    """The text of a program for a GPU that is not here."""
    with on(target):
        return jax.jit(product()).trace(WIDE, WIDE).lower(lowering_platforms=("cuda",)).as_text()


def planned(target):
    """What hopgemm.jax.plan says of the same product."""
    with on(target):
        return hopgemm.jax.plan(product(), WIDE, WIDE)[0].plan


def test_a_lowered_program_takes_the_tuned_config():
    assert CONFIG not in lowered("H200")
    _cache.adopt([entry()])
    assert CONFIG in lowered("H200")
    assert CONFIG not in lowered({"sm_count": 114})


def test_several_processes_ignore_a_users_own_cache(monkeypatch):
    monkeypatch.delenv("HOPGEMM_CACHE")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    _cache.adopt([entry()])
    assert not _tune_agreement.holds(lowering=True)
    assert CONFIG not in lowered("H200")


@pytest.fixture
def exchanged(monkeypatch):
    """Two processes; how often they exchange what they have. The other one has the same."""
    calls = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(_tune_agreement, "_exchange", lambda mine: calls.append(mine) or [mine, mine])
    return calls


def test_only_a_lowering_waits_for_the_others(exchanged):
    _cache.adopt([entry()])
    assert planned("H200").config != CONFIG and exchanged == []
    assert CONFIG in lowered("H200")
    assert planned("H200").config == CONFIG
    assert CONFIG in lowered("H200") and len(exchanged) == 1


def test_what_they_agreed_on_stays(exchanged):
    assert CONFIG not in lowered("H200")
    with pytest.warns(RuntimeWarning, match="have compared"):
        _cache.adopt([entry()])
    assert CONFIG not in lowered("H200") and len(exchanged) == 1


def test_a_second_attempt_may_succeed(exchanged, monkeypatch):
    good = _tune_agreement._exchange

    def fail(mine):
        raise RuntimeError("not every JAX process")

    _cache.adopt([entry()])
    monkeypatch.setattr(_tune_agreement, "_exchange", fail)
    with pytest.raises(RuntimeError, match="not every JAX process"):
        lowered("H200")
    monkeypatch.setattr(_tune_agreement, "_exchange", good)
    assert CONFIG in lowered("H200")


PROCESS = """
import os, sys, warnings
port, index, entries = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if entries == "unnamed":
    del os.environ["HOPGEMM_CACHE"]
import jax
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=index)
sys.path.insert(0, sys.argv[4])
import test_tune_jax as test
from hopgemm import _cache
if entries == "one":
    _cache.adopt([test.entry()])
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    text = test.lowered("H200")
print(test.CONFIG in text, sum("differ between the 2 JAX" in str(w.message) for w in seen))
"""


@pytest.mark.parametrize(
    ("entries", "want"),
    [
        (("one", "one"), ("True 0", "True 0")),
        (("one", "none"), ("False 1", "False 1")),
        (("one", "unnamed"), ("False 1", "False 0")),
    ],
    ids=["equal", "different", "one names none"],
)
def test_two_processes_agree_before_they_compile(entries, want, tmp_path):
    import os

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "HOPGEMM_CACHE": str(tmp_path / "named.json")}
    here = os.path.dirname(__file__)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(port), str(i), entries[i], here],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for i in range(2)
    ]
    done = [process.communicate(timeout=120) for process in processes]
    assert tuple(out.strip() for out, _ in done) == want, done


# ---- on the GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("majors", ["kk", "kn", "mk", "mn"])
def test_tune_on_the_gpu(majors):
    (found,) = hopgemm.tune([(256, 512, 192)], majors=majors, framework="jax", out_dtype="float32")
    plan = hopgemm.plan(m=256, n=512, k=192, majors=majors, out_dtype="float32", device=0)
    assert (plan.config, plan.reason) == (found.config, "tuned on this card")


@pytest.mark.gpu
def test_first_use_on_the_gpu():
    a, b = jnp.ones((256, 512), jnp.bfloat16), jnp.ones((2, 512, 384), jnp.bfloat16)
    with hopgemm.autotune():
        assert (hopgemm.matmul(a, b[0]) == 512).all()
        assert (hopgemm.jax.dot_general(a, a, (((1,), (1,)), ((), ()))) == 512).all()
        assert (hopgemm.matmul(jnp.stack([a, a]), b) == 512).all()
        jax.jit(hopgemm.matmul)(a, a.T)
    assert sorted((x.key.majors, x.key.batch_inner) for x in _cache.in_force()) == [
        ("kk", 1),
        ("kn", 1),
        ("kn", 2),
    ]
    text = jax.jit(hopgemm.matmul).lower(a, b[0]).as_text()
    assert any(x.config in text for x in _cache.in_force() if x.key.batch_inner == 1)
