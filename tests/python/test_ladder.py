"""The ladder: its command, its records, and every rung's product, exact."""

import json
import math

import pytest

from hopgemm import _ladder, _ladder_emulate, _ladder_process, _rungs
from hopgemm._cli import main

CLIMB = ["0", "1", "2", "3a", "3b", "4", "5", "6", "7", "8", "9", "9n", "10", "10n", "11", "12"]
SIDE = ["pingpong", "static", "counter", "fp16acc"]


def test_every_step_has_a_rung():
    assert _ladder.names() == CLIMB + SIDE


@pytest.mark.parametrize(
    ("text", "rungs"),
    [
        ("0", ["0"]),
        ("3", ["3a", "3b"]),
        ("3b,1-2", ["1", "2", "3b"]),
        ("9-11", ["9", "9n", "10", "10n", "11"]),
        ("10n", ["10n"]),
        ("12,side", ["12", *SIDE]),
    ],
)
def test_select(text, rungs):
    assert list(_ladder.select(text)) == rungs


@pytest.mark.parametrize("text", ["13", "", "9x", "5-4", "0,,1"])
def test_select_refuses(text):
    with pytest.raises(ValueError, match="no rung"):
        _ladder.select(text)


def test_refusal_names_the_rule():
    assert _ladder.refusal("7", 4096, "bf16") == ""
    assert _ladder.refusal("7", 4160, "bf16") == "takes M in multiples of 128, N of 256, K of 64, not 4160"
    assert _ladder.refusal("fp16acc", 4096, "bf16") == "takes fp16, not bf16"
    # 8192 is no multiple of 320; TMA clips the last column of tiles.
    assert _ladder.refusal("10", 8192, "fp16") == ""


def test_seed_ratios():
    assert _ladder.seed_ratio("10", 8192, "fp16") == pytest.approx(1.005, abs=1e-3)
    assert _ladder.seed_ratio("11", 4096, "bf16") == pytest.approx(1.067, abs=1e-3)
    assert _ladder.seed_ratio("1", 8192, "fp16") == pytest.approx(0.41, abs=0.01)
    assert _ladder.seed_ratio("1", 4096, "bf16") is None
    assert _ladder.seed_ratio("5", 8192, "fp16") is None
    assert all(rung in _ladder.names() for rung in _ladder._SEEDS)


@pytest.fixture
def fake_processes(monkeypatch):
    """Three processes whose contenders have known speeds; the second finds rung 2 wrong."""
    speeds = iter([(700.0, 300.0), (720.0, 280.0), (710.0, 310.0)])

    def fresh_process(climb):
        cublas, rung = next(speeds)
        errors = {"mean_error": 1e-4, "max_error": 1e-3}
        yield {"rung": "cublas", "tflops": cublas, "correct": True, **errors}
        for name in climb.rungs:
            yield {"rung": name, "tflops": rung, "correct": (name, rung) != ("2", 280.0), **errors}

    monkeypatch.setattr(_ladder, "_fresh_process", fresh_process)


def test_records_are_medians_and_one_wrong_process_counts(fake_processes):
    parts = []
    records = _ladder.measure(_ladder.Climb(4096, "bf16", ("0", "2")), lambda part, _: parts.append(part))
    assert [x["rung"] for x in records] == ["0", "2"]
    assert records[0]["tflops"] == 300.0 and records[0]["ratio_to_cublas"] == 300.0 / 710.0
    assert records[0]["shape"] == "4096x4096x4096" and records[0]["dtype"] == "bf16"
    assert records[0]["seed_ratio"] == pytest.approx(32 / 716)
    assert [x["correct"] for x in records] == [True, False]
    assert parts == sorted(parts) and parts[-1] == 1.0
    table = _ladder.render(records)
    assert "cuBLAS 710 TFLOP/s" in table and "0.045" in table and "NO" in table


def test_a_failing_process_says_why(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="the measuring process failed"):
        _ladder.measure(_ladder.Climb(128, "bf16", ("0",)), lambda part, text: None)


def test_plot(fake_processes, tmp_path):
    pytest.importorskip("matplotlib")
    records = _ladder.measure(_ladder.Climb(4096, "bf16", ("0", "2")), lambda part, text: None)
    _ladder.draw(records, tmp_path / "climb.png")
    assert (tmp_path / "climb.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_gpu_it_says_what_cannot_run(capsys, monkeypatch):
    monkeypatch.setattr(_ladder._core, "device_count", lambda: 0)
    assert main(["ladder", "--rungs", "0,5"]) == 1
    error = capsys.readouterr().err
    assert "no GPU" in error and "rungs 0, 5 cannot run" in error and "--emulate 4, these can: 5" in error


@pytest.mark.parametrize(
    "arguments",
    [["--rungs", "x"], ["--size", "0"], ["--processes", "0"], ["--rest", "-1"], ["--emulate", "0"]],
)
def test_wrong_command_lines(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["ladder", *arguments])
    assert stop.value.code == 2 and "hopgemm ladder: " in capsys.readouterr().err


def test_rungs_with_roles_are_emulated(capsys):
    assert main(["ladder", "--emulate", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [x.split()[0] for x in lines if x.endswith(" ok")] == CLIMB[2:-1] == _ladder_emulate.rungs()
    assert len([x for x in lines if "not emulated" in x]) == 2 + 1 + len(SIDE)


def test_a_wrong_emulated_product_is_seen(capsys, monkeypatch):
    run = _ladder_emulate._run

    def one_wrong(rung, dtype, a, b, out, seed):
        run(rung, dtype, a, b, out, seed)
        out[-1, -1] += 1

    monkeypatch.setattr(_ladder_emulate, "_run", one_wrong)
    assert main(["ladder", "--emulate", "1", "--rungs", "5"]) == 1
    assert "FAILED: seed 0, 384 x 384 x 128, bf16: wrong number at [383, 383]" in capsys.readouterr().out


# ---- on a GPU -------------------------------------------------------------------------------------------

STEPS = {row["rung"]: row["steps"] for row in _rungs.rungs()}
DTYPES = {row["rung"]: row["dtypes"] for row in _rungs.rungs()}
CASES = [(rung, dtype) for rung, dtypes in DTYPES.items() for dtype in dtypes]
# In steps: the smallest product; few tiles, an odd number of rows of them; more tiles than any pool has CTAs.
SIZES = ((1, 1, 1), (3, 7, 8), (33, 67, 3))
PAD = 4096  # elements of NaN, or of canary, on both sides of every matrix


def between_nans(torch, matrix):
    """The same matrix in the middle of a buffer of NaN, and the buffer."""
    buffer = torch.full((matrix.numel() + 2 * PAD,), math.nan, device="cuda", dtype=matrix.dtype)
    inside = buffer[PAD:-PAD].view(matrix.shape)
    inside.copy_(matrix)
    return inside, buffer


@pytest.mark.gpu
@pytest.mark.parametrize(("rung", "dtype"), CASES)
def test_exact(rung, dtype):
    torch = pytest.importorskip("torch")
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    generator = torch.Generator(device="cuda").manual_seed(1)
    stream = torch.cuda.current_stream().cuda_stream
    for steps in SIZES:
        m, n, k = (count * step for count, step in zip(steps, STEPS[rung], strict=True))
        # Whole numbers, every partial sum below 2^11: exact in fp16 sums, too.
        a, b = (
            torch.randint(-1, 2, (rows, k), generator=generator, device="cuda").to(kind) for rows in (m, n)
        )
        exact = (a.float() @ b.float().T).to(kind)
        (a, _), (b, _) = between_nans(torch, a), between_nans(torch, b)
        out, buffer = between_nans(torch, torch.full((m, n), math.nan, dtype=kind, device="cuda"))
        for _ in range(3):  # back to back: nothing may be left over from the launch before
            _rungs.run(rung, a, b, out, stream)
        torch.cuda.synchronize()
        wrong = (out != exact).nonzero()
        assert not len(wrong), f"{m} x {n} x {k}: {len(wrong)} wrong, the first at {wrong[0].tolist()}"
        assert buffer[:PAD].isnan().all() and buffer[-PAD:].isnan().all(), "written outside the result"


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [x for x in CLIMB + SIDE if x not in ("12", "pingpong")])
def test_sizes_that_do_not_divide_are_refused(rung):
    torch = pytest.importorskip("torch")
    steps = STEPS[rung]
    for side in range(3):
        m, n, k = (step + (8 if side == i else 0) for i, step in enumerate(steps))
        a, b, out = (
            torch.zeros(shape, device="cuda", dtype=torch.float16) for shape in ((m, k), (n, k), (m, n))
        )
        name = "MNK"[side]
        with pytest.raises(ValueError, match=f"{name} is {steps[side] + 8}; rung {rung} takes multiples"):
            _rungs.run(rung, a, b, out)


@pytest.mark.gpu
def test_wrong_operands_are_refused():
    torch = pytest.importorskip("torch")
    a, b, out = (torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    with pytest.raises(ValueError, match="there is no rung '13'"):
        _rungs.run("13", a, b, out)
    with pytest.raises(ValueError, match="they must be"):
        _rungs.run("2", a[:128], b, out)
    with pytest.raises(TypeError, match="one dtype"):
        _rungs.run("2", a, b.half(), out)
    with pytest.raises(ValueError, match="rung fp16acc takes float16 alone, not bfloat16"):
        _rungs.run("fp16acc", a, b, out)


@pytest.mark.gpu
def test_a_climb(tmp_path, capsys):
    pytest.importorskip("torch")
    path = tmp_path / "climb.json"
    arguments = ["--size", "1024", "--rungs", "0-12,side", "--rest", "0", "--processes", "1"]
    assert main(["ladder", *arguments, "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    assert [x["rung"] for x in data["records"]] == [x for x in CLIMB + SIDE if x != "fp16acc"]
    assert all(x["correct"] and x["tflops"] > 0 for x in data["records"])
    assert data["header"]["protocol"]["launches"] == 30
    assert "fp16acc   refused: takes fp16, not bf16" in capsys.readouterr().out


@pytest.mark.gpu
def test_fp16_sums_are_measurably_worse():
    pytest.importorskip("torch")
    _, plain, half = _ladder_process.climb(2048, "fp16", ["11", "fp16acc"], 0.0)
    assert plain["correct"] and half["correct"]
    assert half["mean_error"] > 3 * plain["mean_error"]
