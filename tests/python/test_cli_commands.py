"""The command line as a user meets it: each command in a process of its own."""

import io
import json
import os
import subprocess
import sys

import pytest
from test_cache import entry

from hopgemm import _cache, _core
from hopgemm._cli import COMMANDS, _parser, main
from hopgemm._progress import Bar


@pytest.fixture
def one_thread():
    """For commands that multiply in this process; see `hopgemm` for the reason."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def hopgemm(*arguments, status=0, **environment):
    """Runs `python -m hopgemm`; its standard output, and its standard error where a failure is expected."""
    done = subprocess.run(
        [sys.executable, "-m", "hopgemm", *arguments],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",  # threads that spin for small products are slow on a busy machine
            **environment,
        },
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stdout + done.stderr


def test_every_command_is_there():
    assert {"info", "demo", "plan", "bench", "tune", "ladder", "verify", "selftest", "cache"} <= {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_is_taken(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert f"example:\n  hopgemm {COMMANDS[command].example}\n" in text
    assert COMMANDS[command].example.partition(" ")[0] == command
    assert "--json" in text
    _parser([command]).parse_args(COMMANDS[command].example.split())
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert f"  {command} " in capsys.readouterr().out


# What each command does without a GPU, in a second or two: its arguments and its exit status.
WITHOUT_GPU = {
    "info": ([], 0),
    "demo": (["--size", "64"], 0),
    "plan": (["64", "64", "64"], 0),
    "bench": (["--shapes", "64x64x64"], 1),
    "tune": (["--shapes", "64x64x64"], 1),
    "ladder": ([], 1),
    "trace": (["512", "512", "256", "--config", "bf16_kk_128x256x64_c2x1_s4_coop"], 0),
    "verify": (["--config", _core.configs()[0], "--seeds", "1"], 0),
    "selftest": ([], 1),
    "cache": (["check"], 0),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_status_json_and_no_bar_where_there_is_no_terminal(
    command, tmp_path, capsys, monkeypatch, one_thread
):
    if _core.device_count():
        pytest.skip("this machine has a GPU")
    pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)  # some write files
    monkeypatch.setenv("HOPGEMM_CACHE", "tuned.json")
    arguments, status = WITHOUT_GPU[command]
    plain = ["--json"] if _takes_no_file(command) else ["--json", "out.json"]
    assert main([command, *arguments, *plain]) == status
    said = capsys.readouterr()
    assert "\r" not in said.err and "\x1b" not in said.out + said.err
    if status == 0:
        assert said.err == ""
        json.loads(said.out if plain == ["--json"] else (tmp_path / "out.json").read_text())
    else:
        assert said.err.startswith("error: ") and said.out == ""
        assert "GPU" in said.err


def _takes_no_file(command):
    options = _parser([command]).parse_args([command, *WITHOUT_GPU[command][0]])
    return options.json is False


def test_a_bar_on_a_terminal(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bar() as bar:
        bar.update(0.5, "half way")
    assert "[###############...............]  50%" in terminal.getvalue()
    assert "half way" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_help_loads_no_framework():
    code = "import sys; from hopgemm._cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'jax', 'numpy', 'hopgemm._core'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_reader_that_leaves_early_is_no_traceback():
    command = f"{sys.executable} -m hopgemm plan 64 64 64 | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_cache(tmp_path, monkeypatch, capsys):
    path = tmp_path / "tuned.json"
    monkeypatch.setenv("HOPGEMM_CACHE", str(path))

    def run(what, status=0):
        assert main(["cache", what, "--json"]) == status
        return json.loads(capsys.readouterr().out)

    assert run("path") == {"path": str(path)}
    assert run("show")["entries"] == []
    _cache.store([entry(), entry(m=8, config="bf16_kn_64x128x64_c1x1_s8_pingpong")])
    assert [x["m"] for x in run("show")["entries"]] == [4096, 8]
    checked = run("check", status=1)
    assert (checked["entries"], checked["used"], len(checked["problems"])) == (2, 1, 1)
    assert main(["cache", "show"]) == 0
    assert "4096x4096x4096 kk bfloat16 132 SMs: 190.0 us (untuned 200.0)" in capsys.readouterr().out
    assert run("clear")["removed"] == 2
    assert not path.exists()
    assert run("clear")["removed"] == 0
    monkeypatch.setenv("HOPGEMM_CACHE", "off")
    assert main(["cache", "path"]) == 1
    assert "there is no cache" in capsys.readouterr().err


def test_the_console_script():
    import importlib.metadata

    (script,) = importlib.metadata.entry_points(group="console_scripts", name="hopgemm")
    assert script.load()(["plan", "64", "64", "64"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["nothing"], "invalid choice"),
        (["plan", "1", "2"], "required: K"),
        (["plan", "1", "2", "-3"], "k is -3"),
        (["plan", "1", "2", "3", "--batch", "2,x"], "'x': must be a positive integer"),
        (["plan", "1", "2", "3", "--device", "cpu"], "must be a CUDA GPU"),
        (["demo", "--size", "0"], "must be a positive integer"),
        (["bench", "--part", "2"], "must be i/n"),
        (["bench", "--part", "3/2"], "must be i/n"),
        (["bench", "--shapes", "64x64"], "must be MxNxK"),
        (["bench", "--shapes", "64x64x64", "--suite", "core"], "not allowed with"),
        (["bench", "--protocol", "quick"], "invalid choice"),
        (["tune"], "--shapes --suite is required"),
        (["tune", "--suite", "core", "--majors", "kk,nt"], "'nt': must be of kk, kn, mk, mn"),
        (["tune", "--suite", "core", "--part", "3/2"], "must be i/n"),
        (["cache", "burn"], "invalid choice"),
    ],
)
def test_a_wrong_command_line_is_2(arguments, message):
    assert message in hopgemm(*arguments, status=2)


def test_info():
    info = json.loads(
        hopgemm("info", "--json", HOPGEMM_FALLBACK="1", HOPGEMM_SM_LIMIT="lots", HOPGEMM_NOTHING="x")
    )
    import importlib.metadata

    assert info["hopgemm"] == importlib.metadata.version("hopgemm")
    assert info["devices"] == []
    assert info["kernels"] > 0
    assert info["xla_ffi"]["hopgemm"] == [0, 3]
    environment = info["environment"]
    assert environment["HOPGEMM_FALLBACK"] == {"value": "1", "problem": None}
    assert "HOPGEMM_SM_LIMIT is 'lots'" in environment["HOPGEMM_SM_LIMIT"]["problem"]
    assert environment["HOPGEMM_BATCH_INVARIANT"] == {"value": None, "problem": None}
    assert "not a variable" in environment["HOPGEMM_NOTHING"]["problem"]
    for part in ("hopgemm", "hopgemm._core"):
        assert 0 < info["loading"][part]["ms"] < 5000
        assert info["loading"][part]["bytes"] >= 0


def test_info_finds_the_frameworks_without_importing_them():
    import importlib.metadata

    code = (
        "import sys\n"
        "from hopgemm._cli import main\n"
        "assert main(['info', '--json']) == 0\n"
        "assert not {'torch', 'jax', 'jaxlib', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    info = json.loads(done.stdout)
    for name, version in info["packages"].items():
        try:
            assert version == importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            assert version is None
    if info["packages"]["jaxlib"]:
        assert info["xla_ffi"]["jaxlib"][0] == 0


def test_info_for_people():
    text = hopgemm("info", HOPGEMM_SM_LIMIT="64")
    for line in (
        "hopgemm ",
        "compiler ",
        "driver ",
        "GPU ",
        "torch ",
        "jax ",
        "XLA FFI ",
        "import ",
        "load ",
    ):
        assert f"\n{line}" in f"\n{text}"
    assert any(line.split() == ["HOPGEMM_SM_LIMIT", "64"] for line in text.splitlines())


def test_plan():
    plan = json.loads(hopgemm("plan", "4096", "2048", "1024", "--majors", "kn", "--batch", "3", "--json"))
    assert plan["path"] == "gemm"
    assert plan["flops"] == 3 * 2.0 * 4096 * 2048 * 1024
    text = hopgemm("plan", "4096", "2048", "1024", "--majors", "kn", "--batch", "3")
    assert plan["config"] in text
    assert f"{plan['grid']} CTAs" in text


def test_plan_for_a_device_that_is_not_there_is_1():
    assert "error: " in hopgemm("plan", "64", "64", "64", "--device", "0", status=1)


def test_bench_without_a_gpu_is_1():
    pytest.importorskip("torch")
    assert "sees no GPU" in hopgemm("bench", "--baseline", "torch", status=1)


def test_bench_through_jax_without_a_gpu_is_1():
    pytest.importorskip("jax")
    assert "sees no GPU" in hopgemm("bench", "--baseline", "jax", status=1)


def test_demo():
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    result = json.loads(hopgemm("demo", "--size", "200", "--json"))
    assert result["ok"] is True
    assert result["bits"] == "the same bits on exact data"
    torch_row, jax_row = result["rows"]
    for row, name in ((torch_row, "PyTorch on the CPU"), (jax_row, "XLA on the CPU")):
        assert row["computed_by"].startswith(name)
        assert row["exact"] is True
        assert 0 < row["error"] <= 1
        assert row["tflops"] > 0 < row["own_tflops"]
        assert row["problem"] is None


def test_demo_table_names_what_computed():
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    text = hopgemm("demo", "--size", "64")
    assert "PyTorch on the CPU" in text
    assert "XLA on the CPU" in text


def test_demo_tells_a_wrong_product(monkeypatch, capsys, one_thread):
    """One wrong element of the checked rows: the row says NO, and the exit status is 1."""
    torch = pytest.importorskip("torch")
    from hopgemm import _demo

    def wrong(a, b):
        product = torch.mm(a, b)
        product[0, 0] += 64
        return product

    monkeypatch.setattr(_demo, "matmul", wrong)
    monkeypatch.setattr(_demo.importlib.util, "find_spec", lambda name: name == "torch" or None)
    assert main(["demo", "--size", "32"]) == 1
    assert " NO " in capsys.readouterr().out


@pytest.mark.gpu
def test_demo_on_the_gpu():
    done = subprocess.run([sys.executable, "-m", "hopgemm", "demo", "--json"], capture_output=True, text=True)
    result = json.loads(done.stdout)
    assert done.returncode == 0, result
    assert all(
        row["computed_by"].startswith("hopgemm kernel") for row in result["rows"] if not row["problem"]
    )


@pytest.mark.gpu
def test_bench_on_the_gpu(tmp_path):
    path = tmp_path / "r.json"
    shapes = "512x512x512,16x4096x4096,513x257x200"
    command = [sys.executable, "-m", "hopgemm", "bench", "--shapes", shapes, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = json.loads(path.read_text())["records"]
    assert len(records) == 9  # cuBLAS, hopgemm and its batch_invariant, of three shapes
    assert all(record["correct"] and record["tflops"] > 0 for record in records)
    assert "already there" in subprocess.run(command, capture_output=True, text=True).stdout


@pytest.mark.gpu
@pytest.mark.parametrize(
    "command",
    [
        "info --json",
        "plan 4096 4096 4096 --device 0 --json",
        "tune --shapes 512x512x512,16x512x512 --majors kk,mn --json",
        "cache show --json",
        "trace 1024 1024 1024 --json",
        "trace 2048 2112 7168 --out timeline.html",
        "selftest --seconds 5 --json",
        "ladder --size 1280 --rungs 2,12 --rest 0 --processes 1 --json ladder.json",
    ],
)
def test_every_other_command_on_the_gpu(command, tmp_path, monkeypatch):
    monkeypatch.setenv("HOPGEMM_CACHE", str(tmp_path / "tuned.json"))
    done = subprocess.run(
        [sys.executable, "-m", "hopgemm", *command.split()], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = [tmp_path / word for word in command.split() if "." in word]
    assert all(file.stat().st_size > 0 for file in files)
    if command.endswith("--json"):
        assert json.loads(done.stdout) is not None
    if command.startswith("tune"):
        assert len(json.loads((tmp_path / "tuned.json").read_text())["entries"]) == 4
