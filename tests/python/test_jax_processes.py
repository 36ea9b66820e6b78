"""Several JAX processes: one program on the devices of two, and a persistent compilation cache shared."""

import json
import pathlib
import socket
import subprocess
import sys

import pytest
from jax_host_handler import host_env
from jax_host_handler import jax_host_handler as jax_host_handler

pytest.importorskip("jax")

FOLDER = pathlib.Path(__file__).parent / "jax_multi"


def start(handler, devices, script, *args):
    command = [sys.executable, str(FOLDER / script), *map(str, args)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=host_env(handler, devices),
        cwd=FOLDER,
    )


def results(*processes):
    """What each printed; all are ended, whatever happens."""
    try:
        done = [p.communicate(timeout=180) for p in processes]
        assert [p.returncode for p in processes] == [0] * len(processes), [err[-3000:] for _, err in done]
        return [out for out, _ in done]
    finally:
        for p in processes:
            p.kill()
            p.wait()


def test_one_program_on_two_processes(jax_host_handler):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    workers = [start(jax_host_handler, 4, "worker_distributed.py", port, rank) for rank in range(2)]
    assert [out.split()[-1] for out in results(*workers)] == ["done", "done"]


def test_a_second_process_finds_its_programs_in_the_persistent_cache(jax_host_handler, tmp_path):
    first, second = (
        json.loads(results(start(jax_host_handler, 8, "worker_cache.py", tmp_path))[0]) for _ in range(2)
    )
    assert len(first) == 6 and set(map(tuple, first.values())) == {(0, 1)}
    assert set(map(tuple, second.values())) == {(1, 0)} and second.keys() == first.keys()
