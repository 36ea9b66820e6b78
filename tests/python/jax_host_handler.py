"""The host stand-in for the kernel (tests/cpp/xla_host_gemm.cc), compiled once a session."""

import os
import pathlib
import subprocess

import pytest

import hopgemm

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(hopgemm.__file__).parent


@pytest.fixture(scope="session")
def jax_host_handler(tmp_path_factory):
    """Path of a shared library: host_matmul (XLA FFI), host_calls, host_last, host_describe.

    It plans by the installed libhopgemm.so, as the CUDA handler does.
    """
    import jax

    library = tmp_path_factory.mktemp("xla_host") / "xla_host_gemm.so"
    command = [
        "g++",
        *("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
        f"-I{ROOT / 'src'}",
        *("-isystem", jax.ffi.include_dir()),
        str(ROOT / "tests/cpp/xla_host_gemm.cc"),
        str(PACKAGE / "libhopgemm.so"),
        f"-Wl,-rpath,{PACKAGE}",
        *("-o", str(library)),
    ]
    subprocess.run(command, check=True)
    return library


def host_env(handler, devices):
    """The environment of a process whose virtual CPU devices run the custom call by `handler`."""
    import jax

    flags = {
        "xla_force_host_platform_device_count": devices,
        # Most of the time goes into compiling programs that run once.
        "xla_backend_optimization_level": 0,
    }
    if jax.__version_info__ < (0, 12):  # later ones do not know the flag
        flags["xla_cpu_use_fusion_emitters"] = "false"
    return dict(
        os.environ,
        XLA_FLAGS=" ".join(f"--{name}={value}" for name, value in flags.items()),
        JAX_PLATFORMS="cpu",
        TF_CPP_MIN_LOG_LEVEL="3",
        HOPGEMM_TEST_HANDLER=str(handler),
    )
