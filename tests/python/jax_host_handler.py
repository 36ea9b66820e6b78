"""The host stand-in for the kernel (tests/cpp/xla_host_gemm.cc), compiled once a session."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def jax_host_handler(tmp_path_factory):
    """Path of a shared library: host_matmul (XLA FFI), host_calls, host_last, host_describe."""
    import jax

    library = tmp_path_factory.mktemp("xla_host") / "xla_host_gemm.so"
    command = [
        "g++",
        "-std=c++20",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-I{ROOT / 'src'}",
        "-isystem",
        jax.ffi.include_dir(),
        str(ROOT / "tests/cpp/xla_host_gemm.cc"),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return library
