"""The C++ operators on CPU tensors.

Runs every torch test of this folder again, and `torch_cpp_checks.py`, in a subprocess.
See `torch_naive.py` for how a package is built whose CPU key belongs to `torch_ops.cc`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch_naive  # noqa: E402

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    if not shutil.which("g++"):
        pytest.skip("g++ is needed to compile the operators")
    return torch_naive.build(tmp_path_factory.mktemp("naive"))


@pytest.mark.parametrize(
    "file",
    [
        "torch_cpp_checks.py",
        "test_torch_matmul.py",
        "test_torch_shortcuts.py",
        "test_torch_autograd.py",
        "test_torch_compile.py",
    ],
)
def test_on_the_cpp_operators(package, file):
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(package)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(HERE / file)],
        env=os.environ | {"PYTHONPATH": str(package)},
        cwd=package,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
