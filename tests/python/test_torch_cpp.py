"""The C++ operators on CPU tensors.

Runs the torch tests of this folder again, and the `torch_*_checks.py`, in one subprocess.
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
FILES = [
    "torch_cpp_checks.py",
    "torch_aten_checks.py",
    "torch_aten_block_checks.py",
    "test_torch_matmul.py",
    "test_torch_refusals.py",
    "test_torch_modes.py",
    "test_torch_shortcuts.py",
    "test_torch_autograd.py",
    "test_torch_linear.py",
    "test_torch_linear_cost.py",
    "test_torch_compile.py",
]


def test_on_the_cpp_operators(tmp_path):
    if not shutil.which("g++"):
        pytest.skip("g++ is needed to compile the operators")
    package = torch_naive.build(tmp_path)
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(package)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(HERE / file) for file in FILES)],
        env=os.environ | {"PYTHONPATH": str(package)},
        cwd=package,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
