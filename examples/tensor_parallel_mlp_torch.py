"""A feed-forward network split over 2 GPUs in PyTorch: each holds half of every weight.

    python examples/tensor_parallel_mlp_torch.py              on 2 GPUs, over NCCL
    python examples/tensor_parallel_mlp_torch.py --small      on the CPU too, over gloo

The first layer is split by columns, the second by rows, so that one all-reduce forward and one backward are
all that crosses. Each rank overrides its own model: hopgemm knows nothing of the other. Prints the time of a
step, forward and backward, beside torch's own product, and checks the result against the whole network's.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import multiprocessing, nn

import hopgemm.torch

RANKS = 2
CUDA = torch.cuda.device_count() >= RANKS
SIZE = {"width": 4096, "hidden": 14336, "tokens": 8192}
TINY = {"width": 32, "hidden": 64, "tokens": 16}


class _Replicated(torch.autograd.Function):
    """Identity forward; backward sums the ranks' gradients of the input that all of them read."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class _Summed(torch.autograd.Function):
    """Sums the ranks' parts forward; identity backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class MLP(nn.Module):
    """gelu(x @ up.T) @ down.T; split over the ranks, or whole."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor, split: bool) -> None:
        super().__init__()
        self.split = split
        self.up, self.down = (
            nn.Linear(w.shape[1], w.shape[0], bias=False, device="meta") for w in (up, down)
        )
        self.up.weight, self.down.weight = nn.Parameter(up), nn.Parameter(down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (tokens, width), the same on every rank -> (tokens, width), the same on every rank."""
        x = _Replicated.apply(x) if self.split else x
        y = self.down(F.gelu(self.up(x)))
        return _Summed.apply(y) if self.split else y


def check(model: MLP, whole: MLP, x: torch.Tensor, rank: int) -> None:
    """AssertionError unless result and gradients are the whole network's, but for bfloat16's rounding."""
    got, want = (net(x.detach().requires_grad_()) for net in (model, whole))
    grads = [
        torch.autograd.grad(d.float().square().mean(), list(net.parameters()))
        for d, net in ((got, model), (want, whole))
    ]
    up, down = (slice_of(w, i, rank) for i, w in enumerate(grads[1]))
    for found, expected in ((got, want), (grads[0][0], up), (grads[0][1], down)):
        scale = expected.float().square().mean().sqrt().item()
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05 * scale)


def slice_of(weight: torch.Tensor, layer: int, rank: int) -> torch.Tensor:
    """This rank's part: rows of the first weight (its outputs), columns of the second (its inputs)."""
    return weight.chunk(RANKS, dim=layer)[rank].contiguous()


def step_ms(model: MLP, x: torch.Tensor, calls: int) -> float:
    """Mean time of one forward and backward pass."""
    for measured in (False, True):  # the first turn warms up
        start = time.perf_counter()
        for _ in range(calls if measured else 2):
            model(x).float().square().mean().backward()
            model.zero_grad()
        if CUDA:
            torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e3


def work(rank: int, folder: str, size: dict[str, int], rounds: int, calls: int) -> None:
    """One rank. Rank 0 leaves the times in `folder`."""
    device = torch.device("cuda", rank) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if CUDA else "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=RANKS
    )
    torch.manual_seed(0)  # all ranks draw the same
    x, up, down = (
        (torch.randn(rows, columns) * scale).to(device, torch.bfloat16)
        for rows, columns, scale in (
            (size["tokens"], size["width"], 1),
            (size["hidden"], size["width"], size["width"] ** -0.5),
            (size["width"], size["hidden"], size["hidden"] ** -0.5),
        )
    )
    plain = MLP(slice_of(up, 0, rank), slice_of(down, 1, rank), split=True)
    models = {"torch": plain, "hopgemm": hopgemm.torch.override_model(copy.deepcopy(plain))}
    whole = MLP(up, down, split=False)
    for model in models.values():
        check(model, whole, x, rank)
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            times[name].append(step_ms(model, x, calls))
    if rank == 0:
        medians = {name: statistics.median(values) for name, values in times.items()}
        pathlib.Path(folder, "times.json").write_text(json.dumps(medians))
    # HAZARD: a model that outlives its process group can hang the teardown.
    del model, models, plain, whole
    dist.destroy_process_group()


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs both ranks, prints, and returns the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a tiny network, for a machine without 2 GPUs")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the record here")
    options = parser.parse_args(argv)
    if not CUDA and not options.small:
        parser.error(f"fewer than {RANKS} GPUs here: add --small")
    size, rounds, calls = (TINY, 1, 1) if options.small else (SIZE, 5, 20)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (folder, size, rounds, calls), nprocs=RANKS)
        times = json.loads(pathlib.Path(folder, "times.json").read_text())
    where = f"2 x {torch.cuda.get_device_name()}" if CUDA else "2 processes on the CPU"
    record = {"example": "tensor_parallel_mlp_torch", "device": where, "torch": torch.__version__}
    record |= {"size": size, "step_ms": times}
    print(f"{where}, torch {torch.__version__}, {size}")
    print(f"torch {times['torch']:.3f} ms, hopgemm {times['hopgemm']:.3f} ms a step; results agree")
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return record


if __name__ == "__main__":
    main()
