"""`import hopgemm` is quick, quiet and free of CUDA and every framework; each test has its own processes."""

import os
import subprocess
import sys

import pytest


def run(code, *flags, **env):
    """Standard output of `code` in a fresh interpreter; anything on standard error is a failure."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_loads_neither_framework_nor_driver():
    loaded = run(
        "import sys, hopgemm, hopgemm._core\n"
        "print(*[m for m in ('torch', 'jax', 'jaxlib', 'numpy') if m in sys.modules])\n"
        "print(*[l.split()[-1] for l in open('/proc/self/maps') if 'libcuda' in l or 'libcudart' in l])"
    )
    assert loaded.split() == []


def test_without_any_driver():
    """No device is an answer, not an error; the variable hides the devices of a machine that has some."""
    code = "from hopgemm import _core; print(_core.device_count())"
    assert run(code, CUDA_VISIBLE_DEVICES="").split() == ["0"]


def test_import_time():
    """Under 15 ms of processor time (a busy machine stretches the wall clock): the best of five processes."""
    code = "import time; t = time.process_time(); import hopgemm; print(time.process_time() - t)"
    assert min(float(run(code)) for _ in range(5)) < 0.015


def test_public_names_exist():
    run("import hopgemm\nfor name in hopgemm.__all__: getattr(hopgemm, name)")


def test_unknown_attribute():
    run(
        "import hopgemm\n"
        "try: hopgemm.nothing\n"
        "except AttributeError as e: assert 'nothing' in str(e)\n"
        "else: raise SystemExit('no AttributeError')"
    )


def test_no_warning_and_no_leak():
    """Warnings are errors, Python is in development mode, and nanobind reports leaks on standard error."""
    run("import hopgemm, hopgemm._core", "-X", "dev", "-W", "error")


def test_import_again():
    run(
        "import sys, importlib, hopgemm, hopgemm._core\n"
        "importlib.reload(hopgemm)\n"
        "for name in [m for m in sys.modules if m.startswith('hopgemm')]: del sys.modules[name]\n"
        "import hopgemm._core\n"
        "assert hopgemm._core.configs()"
    )


def test_fork_after_import():
    run(
        "import os, hopgemm._core\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if hopgemm._core.configs() else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0"
    )


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_absent_framework(framework):
    """Only its own submodule fails, with ImportError."""
    run(
        "import sys\n"
        f"sys.modules['{framework}'] = None\n"
        "import hopgemm\n"
        f"try: hopgemm.{framework}.matmul\n"
        f"except ImportError as e: assert '{framework}' in str(e)\n"
        "else: raise SystemExit('no ImportError')"
    )
