"""The kernel on the emulated machine, from Python: products bit for bit, logs, errors, `hopgemm verify`."""

import json

import ml_dtypes
import numpy as np
import pytest

from hopgemm import _emulate, _verify

BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL = "bf16_kn_64x128x64_c1x1_s8_pingpong"


def integers(seed, shape, dtype=BF16):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32)


def same_bits(found, expected):
    return found.tobytes() == expected.astype(found.dtype).tobytes()


def test_the_names_are_those_of_the_compiled_kernels():
    from hopgemm import _core

    assert _emulate.configs() == _core.configs()


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("seed", range(3))
def test_product(dtype, seed):
    a, b = integers(seed, (150, 77), dtype), integers(seed + 1, (77, 90), dtype)
    assert same_bits(_emulate.emulate(a, b, seed=seed).product, product(a, b))


def test_epilogue():
    a, b, c = integers(0, (70, 64)), integers(1, (64, 72)), integers(2, (70, 72), np.float32)
    bias = integers(3, 72)
    found = _emulate.emulate(a, b, c=c, bias=bias, alpha=-1.0, beta=2.0, out_dtype=np.float32)
    assert same_bits(found.product, -product(a, b) + 2 * c + bias.astype(np.float32))


@pytest.mark.parametrize("tail", ["1x2", "3x20"])
def test_a_tail(tail):
    """The sums go through the workspace, behind an operand that had to be packed; then the epilogue."""
    a, b, c = integers(0, (140, 577)), integers(1, (577, 72)), integers(2, (140, 72))
    name = f"bf16_kn_64x128x64_c1x1_s8_pingpong+tail{tail}"
    found = _emulate.emulate(a, b, c=c, beta=2.0, config=name)
    assert found.config == name
    assert same_bits(found.product, product(a, b) + 2 * c.astype(np.float32))


@pytest.mark.parametrize("schedule", ["+waves1", "+waves2", "+k2+waves1", "+waves1+tail3x20"])
def test_several_launches(schedule):
    a, b, c = integers(0, (300, 577)), integers(1, (577, 200)), integers(2, (300, 200))
    in_one = schedule.replace("+waves1", "").replace("+waves2", "")
    one, several = (
        _emulate.emulate(a, b, c=c, beta=2.0, config=SMALL + x, sm_count=2) for x in (in_one, schedule)
    )
    assert several.config == SMALL + schedule
    assert same_bits(several.product, product(a, b) + 2 * c.astype(np.float32))
    # As many loads. A ring is empty again where a launch begins: its stages come in order, from the first on.
    loads = [[e for e in run.events if e.what == "load"] for run in (one, several)]
    assert len(loads[0]) == len(loads[1])
    steps = [e.step for e in several.events]
    assert steps == sorted(steps) and steps[-1] <= several.steps
    assert loads[0] != loads[1]


@pytest.mark.parametrize(
    "config",
    [
        "bf16_kn_128x256x64_c2x1_s4_coop+waves1",
        "bf16_kn_16x128x64_c1x1_s11_swap+waves1+split2",
        "bf16_kn_16x128x64_c1x2_s11_swap+waves1",
    ],
)
def test_several_launches_of_other_kernels(config):
    a, b = integers(0, (520, 200)), integers(1, (200, 304))
    assert same_bits(_emulate.emulate(a, b, config=config, sm_count=4, log=False).product, product(a, b))


def test_batches_broadcast():
    a, b = integers(0, (2, 1, 40, 50)), integers(1, (3, 50, 60))
    found = _emulate.emulate(a, b)
    assert found.product.shape == (2, 3, 40, 60)
    assert same_bits(found.product, product(a, b))


def test_strides_that_no_copy_engine_takes():
    a, b = integers(0, (66, 90))[::2, 1::2], integers(1, (64, 45)).T[:, ::-1]
    assert same_bits(_emulate.emulate(a, b).product, product(a, b))


def test_a_named_config_and_its_log():
    a, b = integers(0, (128, 100)), integers(1, (100, 64))
    first, again, other = (_emulate.emulate(a, b, config=SMALL, seed=seed) for seed in (1, 1, 2))
    assert first.config == SMALL
    assert first.events == again.events != other.events
    loads = [e for e in first.events if e.what == "load"]
    assert {e.role for e in loads} == {"producer"}
    assert len(loads) == 3 * 2 * 2  # a box of A and two of B, two tiles, two steps of K
    assert sum(e.what == "store" for e in first.events) == 2 * 2  # two pieces of two tiles
    assert not _emulate.emulate(a, b, log=False).events


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"a": [[1.0]]}, TypeError, "a is a list"),
        ({"a": integers(0, (8, 8), np.float16)}, TypeError, "a is float16, b is bfloat16"),
        (
            {"a": integers(0, (8, 8), np.int32), "b": integers(0, (8, 8), np.int32)},
            TypeError,
            "a is int32; supported",
        ),
        ({"a": integers(0, (8, 9))}, ValueError, r"a is \(8, 9\), b is \(8, 8\)"),
        ({"a": integers(0, 8)}, ValueError, r"a is \(8,\)"),
        ({"config": "fast"}, ValueError, "config is 'fast'"),
        ({"config": SMALL.replace("bf16", "f16")}, ValueError, "does not fit bfloat16"),
        ({"sm_count": 0}, ValueError, "sm_count is 0"),
        ({"alpha": 0.0}, ValueError, "no product is computed"),
    ],
)
def test_errors(change, error, message):
    arguments = {"a": integers(0, (8, 8)), "b": integers(1, (8, 8))} | change
    with pytest.raises(error, match=message):
        _emulate.emulate(**arguments)


def test_verify(capsys):
    assert _verify.main(["--config", SMALL, "--seeds", "8", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == {"instances": [{"name": SMALL, "runs": 8, "ok": True, "failure": ""}], "ok": True}


def test_verify_all(capsys):
    assert _verify.main(["--seeds", "4"]) == 0
    assert capsys.readouterr().out.count(" ok") == len(_emulate.configs())


def test_verify_sees_a_wrong_number(monkeypatch, capsys):
    def wrong(*args, **kwargs):
        result = _emulate.emulate(*args, **kwargs)
        result.product[..., -1, -1] += 1
        return result

    monkeypatch.setattr(_verify, "emulate", wrong)
    assert _verify.main(["--config", SMALL, "--json"]) == 1
    assert "wrong number at [68, 130]" in json.loads(capsys.readouterr().out)["instances"][0]["failure"]


def test_verify_command_line(capsys):
    for arguments in (["--config", "fast"], ["--seeds", "0"]):
        with pytest.raises(SystemExit) as exit_:
            _verify.main(arguments)
        assert exit_.value.code == 2
    assert "no kernel is named 'fast'" in capsys.readouterr().err


def test_what_is_not_taken_is_refused():
    a, b = np.ones((8, 8), np.float16), np.ones((8, 8), np.float16)
    with pytest.raises(ValueError, match="beta is 2.0 but c is None"):
        _emulate.emulate(a, b, beta=2.0)
    with pytest.raises(ValueError, match=r"bias is \(8, 1\); it must be \(8,\)"):
        _emulate.emulate(a, b, bias=np.ones((8, 1), np.float16))
