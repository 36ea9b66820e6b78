"""Runs the checks of jax_multi/ in processes of their own.

They have eight virtual CPU devices and a host handler for the kernel: differentiated, batched, sharded and
exported programs really execute the custom call there.
"""

import pathlib
import re
import subprocess
import sys

import pytest
from jax_host_handler import host_env
from jax_host_handler import jax_host_handler as jax_host_handler

pytest.importorskip("jax")

FOLDER = pathlib.Path(__file__).parent / "jax_multi"
CHECKS = sorted(path.name for path in FOLDER.glob("check_*.py"))


def test_there_are_checks():
    assert len(CHECKS) >= 12


@pytest.mark.parametrize("name", CHECKS)
def test_checks_pass(name, jax_host_handler):
    env = host_env(jax_host_handler, devices=8)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / name)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=FOLDER, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert re.match(r"\d+ passed", summary) and "skipped" not in summary, summary
