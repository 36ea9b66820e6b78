"""hopgemm.plan: what it asks of C++ for operands and for sizes, what it refuses, how it reads."""

import dataclasses
import re
import types

import pytest

import hopgemm
from hopgemm import _core, _device, _plan

FIELDS = {
    "path": "gemm",
    "config": "bf16_bf16_kk_128x256x64_c2x1_s4_coop_tma",
    "reason": "the table",
    "majors": "kk",
    "pack_a": False,
    "pack_b": True,
    "swapped": False,
    "store": "tma",
    "tiles": 512,
    "grid": 128,
    "waves": 4.0,
    "launches": 1,
    "workspace_bytes": 4096,
    "flops": 2.0 * 4096**3,
    "bytes": 6.0 * 4096**2,
}


@pytest.fixture
def asked(monkeypatch):
    """What plan() asks of the core, which answers FIELDS: positional arguments by name, and options."""
    seen = {}
    names = ("dtype", "out_dtype", "m", "n", "k", "batch", "a_strides", "b_strides", "d_strides")

    def plan(*arguments, **options):
        seen.clear()
        seen.update(zip(names, arguments, strict=True), **options)
        return dict(FIELDS)

    monkeypatch.setattr(_plan, "_core", types.SimpleNamespace(plan=plan))
    return seen


@pytest.mark.parametrize(
    ("majors", "a_strides", "b_strides"),
    [("kk", [7, 1], [1, 7]), ("kn", [7, 1], [5, 1]), ("mk", [1, 3], [1, 7]), ("mn", [1, 3], [5, 1])],
)
def test_sizes(asked, majors, a_strides, b_strides):
    assert hopgemm.plan(m=3, n=5, k=7, dtype="fp16", majors=majors) == hopgemm.Plan(**FIELDS)
    assert (asked["dtype"], asked["out_dtype"], asked["batch"]) == ("float16", "float16", [])
    assert (asked["m"], asked["n"], asked["k"]) == (3, 5, 7)
    assert (asked["a_strides"], asked["b_strides"], asked["d_strides"]) == (a_strides, b_strides, [5, 1])
    assert asked["device"] is None
    assert asked["alignment"] == (256, 256, 256)


def test_sizes_with_a_batch(asked):
    hopgemm.plan(m=3, n=5, k=7, batch=(2, 4))
    assert asked["batch"] == [2, 4]
    assert asked["a_strides"] == [84, 21, 7, 1]
    assert asked["b_strides"] == [140, 35, 1, 7]
    assert asked["d_strides"] == [60, 15, 5, 1]


def test_options(asked):
    epilogue = {"alpha": 2.0, "beta": 0.5, "c": True, "bias": False, "out_dtype": "fp32"}
    hopgemm.plan(m=3, n=5, k=7, **epilogue, config="x", sm_limit=9, device="cuda:2")
    assert asked["out_dtype"] == "float32"
    assert (asked["alpha"], asked["beta"], asked["c"], asked["bias"]) == (2.0, 0.5, True, False)
    assert (asked["config"], asked["sm_limit"]) == ("x", 9)
    assert (asked["batch_invariant"], asked["device"]) == (False, 2)


def test_settings_hold_unless_an_argument_says_otherwise(asked):
    with hopgemm.sm_limit(40), hopgemm.batch_invariant():
        hopgemm.plan(m=3, n=5, k=7)
        assert (asked["sm_limit"], asked["batch_invariant"]) == (40, True)
        hopgemm.plan(m=3, n=5, k=7, sm_limit=0, batch_invariant=False)
        assert (asked["sm_limit"], asked["batch_invariant"]) == (0, False)


def test_torch_operands(asked):
    torch = pytest.importorskip("torch")
    memory = torch.zeros(4096, dtype=torch.bfloat16)
    skip = -memory.data_ptr() % 256 // 2 + 8  # to 16 bytes past a multiple of 256
    a = memory[skip:].as_strided((3, 7), (16, 1))
    b = torch.zeros(5, 7, dtype=torch.bfloat16).T
    out = torch.zeros(3, 8, dtype=torch.float32)[:, :5]
    hopgemm.plan(a, b, bias=torch.zeros(5), out=out)
    assert (asked["dtype"], asked["out_dtype"], asked["batch"]) == ("bfloat16", "float32", [])
    assert (asked["m"], asked["n"], asked["k"]) == (3, 5, 7)
    assert (asked["a_strides"], asked["b_strides"], asked["d_strides"]) == ([16, 1], [1, 7], [8, 1])
    assert asked["alignment"][0] == 16
    assert (asked["bias"], asked["c"], asked["device"]) == (True, False, None)


def test_torch_operands_without_memory(asked):
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    meta = torch.zeros(4, 4, dtype=torch.float16, device="meta")
    with FakeTensorMode():
        fake = torch.zeros(4, 4, dtype=torch.float16)
    for x in (meta, fake):
        hopgemm.plan(x, x)
        assert asked["alignment"] == (256, 256, 256)


def test_jax_operands(asked):
    jax = pytest.importorskip("jax")
    a = jax.numpy.zeros((2, 1, 3, 7), "bfloat16")
    b = jax.ShapeDtypeStruct((4, 7, 5), "bfloat16")
    hopgemm.plan(a, b)
    assert (asked["batch"], asked["m"], asked["n"], asked["k"]) == ([2, 4], 3, 5, 7)
    assert asked["a_strides"] == [21, 0, 7, 1]
    assert asked["b_strides"] == [0, 35, 5, 1]
    assert asked["d_strides"] == [60, 15, 5, 1]


def test_vectors(asked):
    torch = pytest.importorskip("torch")
    v, w = torch.zeros(14, dtype=torch.bfloat16)[::2], torch.zeros(2, 7, 5, dtype=torch.bfloat16)
    hopgemm.plan(v, w, out=torch.zeros(2, 5, dtype=torch.bfloat16))
    assert (asked["batch"], asked["m"], asked["n"], asked["k"]) == ([2], 1, 5, 7)
    assert asked["a_strides"][-1] == 2
    assert asked["d_strides"] == [5, 5, 1]
    hopgemm.plan(w.mT, v, out=torch.zeros(2, 5, dtype=torch.bfloat16))
    assert (asked["m"], asked["n"], asked["b_strides"][-2], asked["d_strides"]) == (5, 1, 2, [5, 1, 1])
    hopgemm.plan(v, v)
    assert (asked["batch"], asked["m"], asked["n"], asked["k"]) == ([], 1, 1, 7)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"m": 3, "n": 5}, TypeError, "k is missing"),
        ({"m": 3, "n": 5, "k": -1}, ValueError, "k is -1; must be an integer, 0 or more"),
        ({"m": 3, "n": 5, "k": 7, "batch": (2, -2)}, ValueError, r"batch\[1\] is -2"),
        ({"m": 3, "n": 5, "k": 7, "majors": "nt"}, ValueError, "majors is 'nt'"),
        ({"m": 3, "n": 5, "k": 7, "device": "cpu"}, ValueError, 'device is "cpu"'),
        ({"m": 3, "n": 5, "k": 7, "device": 1.5}, TypeError, "device is 1.5"),
    ],
)
def test_wrong_sizes(asked, arguments, error, message):
    with pytest.raises(error, match=message):
        hopgemm.plan(**arguments)


def test_wrong_operands(asked):
    torch = pytest.importorskip("torch")

    def x(*shape, dtype=torch.bfloat16):
        return torch.zeros(shape, dtype=dtype)

    for arguments, options, error, message in (
        ((x(2, 3),), {}, TypeError, "two operands, or m="),
        ((x(2, 3), x(3, 4)), {"m": 2}, TypeError, "not a mixture"),
        ((x(2, 3), [1]), {}, TypeError, r"b is \[1\]"),
        ((x(2, 3), x(3, 4, dtype=torch.float16)), {}, TypeError, "a is bfloat16 and b is float16"),
        ((x(2, 3), x(4, 3)), {}, ValueError, "K must be equal, found 3 and 4"),
        ((x(2, 2, 3), x(5, 3, 4)), {}, ValueError, "batch dimensions must broadcast"),
        ((x(), x(3, 4)), {}, ValueError, "a has 0 dimensions"),
        (
            (x(2, 3), x(3, 4)),
            {"out": x(4, 2)},
            ValueError,
            r"out is \(4, 2\); must be the product's shape, \(2, 4\)",
        ),
    ):
        with pytest.raises(error, match=message):
            hopgemm.plan(*arguments, **options)


def test_text():
    text = str(hopgemm.Plan(**FIELDS))
    for part in ("gemm: the kernel", FIELDS["config"], "the table", "b packed first"):
        assert part in text
    assert "128 CTAs for 512 tiles: 4.00 waves\n" in text
    in_two = str(hopgemm.Plan(**{**FIELDS, "launches": 2}))
    assert "128 CTAs for 512 tiles: 4.00 waves in 2 launches\n" in in_two
    assert "1365 FLOP/byte" in text
    empty = str(hopgemm.Plan(**{**FIELDS, "path": "empty", "flops": 0.0, "bytes": 0.0}))
    assert "nothing to launch" in empty
    assert "waves" not in empty


def test_frozen():
    plan = hopgemm.Plan(**FIELDS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.grid = 1


def test_the_real_core_answers():
    """C++ decides, so only what holds for every selection: the sums, and that sizes and operands agree."""
    plan = hopgemm.plan(m=4096, n=4096, k=4096)
    assert (plan.path, plan.majors, plan.pack_a, plan.pack_b, plan.store) == (
        "gemm",
        "kk",
        False,
        False,
        "tma",
    )
    assert (plan.flops, plan.bytes) == (2.0 * 4096**3, 6.0 * 4096**2)
    assert plan.tiles == round(plan.waves * plan.grid)
    assert 1 <= plan.grid <= 132
    assert plan.config
    assert hopgemm.plan(m=4096, n=4096, k=4096, config=plan.config).config == plan.config
    assert hopgemm.plan(m=4096, n=4096, k=4096, sm_limit=16).grid <= 16
    assert hopgemm.plan(m=0, n=8, k=8).path == "empty"
    assert hopgemm.plan(m=8, n=8, k=0).path == "fill"


@pytest.mark.parametrize("sms", [1, 16, 26, 32, 46, 60, 78, 114, 132, 144])
def test_the_real_core_takes_any_number_of_sms(sms):
    """Of other cards and of MIG slices: the grid is one of whole clusters, and no larger than the GPU."""
    for m, n, k in (
        (1, 4096, 4096),
        (16, 8192, 4096),
        (777, 1000, 520),
        (4096, 4096, 4096),
        (8192, 16384, 72),
    ):
        strides = [[k, 1], [1, k], [n, 1]]
        plan = _core.plan("bfloat16", "bfloat16", m, n, k, [], *strides, facts={"sm_count": sms})
        rows, columns, split = re.search(r"_c(\d)x(\d)_[^+]*(?:.*\+split(\d))?", plan["config"]).groups()
        cluster = int(rows) * int(columns) * int(split or 1)
        assert cluster <= plan["grid"] <= sms and plan["grid"] % cluster == 0, plan
        assert plan["waves"] * plan["grid"] >= plan["tiles"] - 0.5


def test_the_real_core_agrees_on_tensors():
    torch = pytest.importorskip("torch")
    a, w = (torch.zeros(512, 256, dtype=torch.bfloat16, device="meta") for _ in range(2))
    assert hopgemm.plan(a, w.T) == hopgemm.plan(m=512, n=512, k=256)
    assert hopgemm.plan(a.T, w) == hopgemm.plan(m=256, n=256, k=512, majors="mn")


def test_the_real_core_refuses():
    with pytest.raises(ValueError, match="config"):
        hopgemm.plan(m=64, n=64, k=64, config="no_such_kernel")
    with pytest.raises((TypeError, ValueError), match="float64"):
        hopgemm.plan(m=64, n=64, k=64, dtype="float64")


JAX_GPU = types.SimpleNamespace(platform="gpu", local_hardware_id=2)


@pytest.mark.parametrize(
    ("device", "index"), [(0, 0), (3, 3), ("3", 3), ("cuda", 0), ("cuda:1", 1), (JAX_GPU, 2)]
)
def test_device_names(device, index):
    assert _device.device_index(device) == index


def test_device_of_torch():
    torch = pytest.importorskip("torch")
    assert _device.device_index(torch.device("cuda", 1)) == 1
    assert _device.device_index(torch.device("cuda")) == 0
    with pytest.raises(ValueError, match="must be a CUDA GPU"):
        _device.device_index(torch.device("cpu"))


@pytest.mark.parametrize("bad", [-1, "gpu", "cuda:x", "cuda:-1"])
def test_wrong_device_values(bad):
    with pytest.raises(ValueError, match="device is"):
        _device.device_index(bad)


@pytest.mark.gpu
def test_facts_of_the_gpu():
    facts = hopgemm.device_info("cuda:0")
    assert tuple(facts["compute_capability"]) == (9, 0)
    assert hopgemm.sm_count() == facts["sm_count"] > 0
    assert hopgemm.plan(m=4096, n=4096, k=4096, device=0).grid <= facts["sm_count"]
    hopgemm.warmup()
