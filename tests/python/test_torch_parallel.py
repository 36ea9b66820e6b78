"""DTensor, tensor-parallel modules, FSDP and DDP: `torch_parallel.py` as two processes, by gloo or NCCL."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

CHECKS = "products partial_operands tensor_parallel no_main_grad no_out data_parallel fully_sharded".split()
CHECKS += ["training", "done"]


def run(device, folder):
    command = [
        sys.executable,
        str(Path(__file__).with_name("torch_parallel.py")),
        device,
        str(folder / "meeting"),
    ]
    files = [folder / f"rank{rank}" for rank in (0, 1)]
    ranks = []
    for rank, file in enumerate(files):
        with file.open("w") as output:
            ranks.append(subprocess.Popen([*command, str(rank)], stdout=output, stderr=subprocess.STDOUT))
    try:
        end = time.monotonic() + 240
        # A rank that fails leaves the other one waiting for it.
        while any(p.poll() is None for p in ranks) and not any(p.poll() for p in ranks):
            assert time.monotonic() < end, f"no end after 240 s: {[file.read_text() for file in files]}"
            time.sleep(0.05)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for process, file in zip(ranks, files, strict=True):
        output = file.read_text()
        assert process.returncode == 0, [file.read_text() for file in files]
        assert [line for line in output.splitlines() if line in CHECKS] == CHECKS, output


def test_gloo(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    run("cpu", tmp_path)


@pytest.mark.gpu
def test_nccl(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    run("cuda", tmp_path)
