"""The installed distribution: what is in it, what it links to, and what it says of itself."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hopgemm

PACKAGE = Path(hopgemm.__file__).parent
BINARIES = (
    "libhopgemm.so",
    "libhopgemm_emulator.so",
    "_core.abi3.so",
    "_rungs.abi3.so",
    "_torch_ops.so",
    "_trace_core.abi3.so",
)

# Part of every glibc system (manylinux), plus our own.
ALLOWED_LIBRARIES = {
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libhopgemm.so",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
}


def output_of(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_one_wheel_for_every_python():
    wheel = importlib.metadata.distribution("hopgemm").read_text("WHEEL")
    tags = re.findall(r"^Tag: (.*)$", wheel, re.MULTILINE)
    assert tags and all(tag.startswith("cp310-abi3-") for tag in tags)


def test_files():
    files = {str(file) for file in importlib.metadata.files("hopgemm")}
    assert {
        f"hopgemm/{name}" for name in (*BINARIES, "_core.pyi", "py.typed", "include/hopgemm/gemm.h")
    } <= files
    kinds = {Path(file).suffix for file in files if file.startswith("hopgemm/")}
    # pip compiles what it installs
    assert kinds == {".h", ".html", ".py", ".pyi", ".so", ".typed"} | kinds & {".pyc"}


def test_metadata():
    metadata = importlib.metadata.metadata("hopgemm")
    assert metadata["Version"] == hopgemm.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"  # no upper cap
    always = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert always == ["nanobind-backend>=1.0"]
    assert {"torch", "jax", "bench"} <= set(metadata.get_all("Provides-Extra"))
    assert any(e.name == "hopgemm" for e in importlib.metadata.entry_points(group="console_scripts"))


@pytest.mark.parametrize("binary", BINARIES)
def test_links_nothing_found_by_luck(binary):
    dynamic = output_of("readelf", "--dynamic", "--wide", PACKAGE / binary)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed and needed <= ALLOWED_LIBRARIES
    assert re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic) in ([], ["$ORIGIN"])


@pytest.mark.parametrize("binary", BINARIES)
def test_no_framework_and_no_driver_symbol(binary):
    undefined = output_of("nm", "--dynamic", "--undefined-only", "--demangle", PACKAGE / binary)
    assert undefined
    symbols = [line.split()[-1] for line in undefined.splitlines()]
    assert [s for s in symbols if re.match(r"(c10|at|torch|aoti_torch|torch_|cu[A-Z]|cuda[A-Z])", s)] == []


@pytest.mark.parametrize("binary", BINARIES)
def test_exports_only_what_is_ours(binary):
    defined = output_of("nm", "--dynamic", "--defined-only", "--demangle", PACKAGE / binary)
    names = [line.split(maxsplit=2)[2] for line in defined.splitlines()]
    assert names
    # Weak symbols of the C++ library's templates may stay visible; a CUDA or framework name may not.
    assert [n for n in names if re.match(r"(cuda|cu[A-Z]|__cuda|c10|at::|torch)", n)] == []


@pytest.mark.parametrize("binary", BINARIES)
def test_no_path_of_the_build_machine(binary):
    data = (PACKAGE / binary).read_bytes()
    assert re.findall(rb"/(?:tmp|home|root|work|build|github)/[\w./-]+", data) == []


def test_library_without_any_python(tmp_path):
    """The C++ surface by itself: a program that includes the installed header and links the library."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    source, program = tmp_path / "main.cc", tmp_path / "main"
    source.write_text(
        '#include <hopgemm/gemm.h>\nint main() { std::printf("%d %s", hopgemm::h200_facts().sm_count, '
        "hopgemm::config_name(0)); }\n"
    )
    command = ["g++", "-std=c++20", f"-I{PACKAGE}/include", source, f"-L{PACKAGE}", "-lhopgemm"]
    subprocess.run([*command, f"-Wl,-rpath,{PACKAGE}", "-o", program], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed.split()[0] == "132" and printed.split()[1] in printed_configs()


def printed_configs():
    return subprocess.run(
        [sys.executable, "-c", "from hopgemm import _core; print(*_core.configs())"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
