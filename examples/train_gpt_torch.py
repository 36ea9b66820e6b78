"""GPT-2 small trained in PyTorch: as it is, with its sums in two other orders, and on hopgemm.

    python examples/train_gpt_torch.py --json torch.json          about a minute on an H200
    python examples/train_gpt_torch.py --small --steps 20         a tiny model, on the CPU too

fp32 master weights, bfloat16 by autocast. The one line that matters is `hopgemm.torch.override_model(model)`.
Prints step times, losses and the share of matrix-product FLOPs that ran in hopgemm, counted from a profile.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import gpt_training
import torch
import torch.nn.functional as F
from gpt_training import BACKWARDS, FRAMEWORK, FROM_THE_MIDDLE, HOPGEMM, Size
from torch import nn
from torch.profiler import ProfilerActivity, profile

import hopgemm.torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    """One transformer layer: causal attention and a feed-forward network, each behind a LayerNorm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        w, self.heads = size.width, size.heads
        self.norm1, self.norm2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.qkv, self.proj = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (batch, length, width) -> the same shape."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The language model; the embedding is the output layer's weight, too."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(size.vocab, size.width),
            nn.Embedding(size.length, size.width),
        )
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocab, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                depth = math.sqrt(2 * size.layers) if name.endswith(("proj.weight", "down.weight")) else 1
                nn.init.normal_(p, std=0.02 / depth)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens (batch, length + 1) integers -> the mean cross entropy of each token after the first."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def all_flipped(x: torch.Tensor) -> torch.Tensor:
    """Every dimension backwards."""
    return x.flip(tuple(range(x.dim())))


def half_round(x: torch.Tensor, direction: int = 1) -> torch.Tensor:
    """Every dimension rolled by half of its length; direction -1 rolls it back."""
    return x.roll([direction * (length // 2) for length in x.shape], list(range(x.dim())))


class Reordered(nn.Linear):
    """torch's own products, each sum in another order: of a forward product over the inputs, of its
    derivatives over the outputs and over the tokens. `there` reorders a tensor, `back` undoes it."""

    there: Callable[[torch.Tensor], torch.Tensor]
    back: Callable[[torch.Tensor], torch.Tensor]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in_features) -> (..., out_features)."""
        bias = None if self.bias is None else self.there(self.bias)
        return self.back(F.linear(self.there(x), self.there(self.weight), bias))


class Backwards(Reordered):
    """Each sum backwards."""

    there = back = staticmethod(all_flipped)


class FromTheMiddle(Reordered):
    """Each sum begins in the middle and goes round."""

    there, back = staticmethod(half_round), staticmethod(functools.partial(half_round, direction=-1))


def to_linear(kind: type[nn.Linear]) -> Callable[[nn.Module], None]:
    """Makes every nn.Linear of a model a `kind`, in place."""

    def change(model: nn.Module) -> None:
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = kind

    return change


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    FRAMEWORK: to_linear(nn.Linear),
    BACKWARDS: to_linear(Backwards),
    FROM_THE_MIDDLE: to_linear(FromTheMiddle),
    HOPGEMM: hopgemm.torch.override_model,
}


class Run:
    """One model and its optimizer; the same weights and batches whatever `name` is."""

    def __init__(self, name: str, size: Size, data: torch.Tensor, compiled: bool) -> None:
        torch.manual_seed(0)
        self.model = GPT(size).to(DEVICE)
        CHANGES[name](self.model)
        if compiled:
            self.model.compile()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=DEVICE.type == "cuda"
        )
        self.data, self.steps = data, 0

    def step(self, wait: bool = True) -> torch.Tensor:
        """One step of training; returns the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = gpt_training.learning_rate(self.steps)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss: torch.Tensor = self.model(self.data[self.steps % len(self.data)])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        if wait and DEVICE.type == "cuda":
            torch.cuda.synchronize()
        return loss.detach()


# ---- FLOPs from a profile ----


# Operators that multiply matrices, and which of their arguments the two matrices are.
PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
    "hopgemm::gemm": (0, 1),
    "hopgemm::gemm_out": (1, 2),
    "hopgemm::_gemm": (0, 1),
    "hopgemm::_mm": (0, 1),
    "hopgemm::_mm_bias": (0, 1),
    "hopgemm::_mm_out": (1, 2),
    "hopgemm::_mm_backward": (0, 1),
    "hopgemm::_linear": (0, 1),
    "hopgemm::_linear_backward": (0, 1),
}


def flops_of(event: Any) -> int:
    """Of one operator, from the shapes of its arguments: A (..., M, K) and B (..., K, N)."""
    if event.name.endswith("_backward"):  # grad (..., M, N) and a (..., M, K): two products
        grad, a = event.input_shapes[:2]
        return 4 * math.prod(grad) * a[-1]
    a, b = (event.input_shapes[i] for i in PRODUCTS[event.name])
    return 2 * math.prod(a) * b[0 if event.name == "hopgemm::_linear" else -1]  # a weight is (N, K)


def ran_in_hopgemm(event: Any) -> bool:
    """By the names of the kernels that the operator launched; on the CPU by its own name."""
    if DEVICE.type != "cuda":
        return bool(event.name.startswith("hopgemm::"))
    inside = [event]
    for e in inside:
        inside.extend(e.cpu_children)
    return any("hopgemm" in kernel.name for e in inside for kernel in e.kernels)


def has_parent(event: Any, names: Any) -> bool:
    """Was this operator called by one of `names`?"""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name in names:
            return True
        parent = parent.cpu_parent
    return False


def profiled_gemm_flops(run: Run) -> dict[str, int]:
    """FLOPs of the matrix products of one step, forward and backward, and of those that hopgemm ran."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (DEVICE.type == "cuda")
    with profile(activities=activities, record_shapes=True) as profiled:
        run.step()
    events = [e for e in profiled.events() if e.name in PRODUCTS and not has_parent(e, PRODUCTS)]
    return {
        "total": sum(map(flops_of, events)),
        "hopgemm": sum(flops_of(e) for e in events if ran_in_hopgemm(e)),
    }


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Trains, prints, and returns the record."""
    parser = gpt_training.argument_parser(__doc__)
    parser.add_argument("--compile", action="store_true", help="torch.compile the models")
    options = parser.parse_args(argv)
    if DEVICE.type != "cuda" and not options.small:
        parser.error("no GPU here: add --small")
    size = gpt_training.size_of(options)
    data = torch.from_numpy(gpt_training.batches(size, options.steps)).long().to(DEVICE)
    runs = {name: Run(name, size, data, options.compile) for name in CHANGES}
    losses = {
        name: torch.stack([run.step() for _ in range(options.steps)]).tolist() for name, run in runs.items()
    }
    record = {
        "example": "train_gpt_torch",
        "framework": f"torch {torch.__version__}" + ", compiled" * options.compile,
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
        "size": vars(size),
        "loss": losses,
        "gemm": profiled_gemm_flops(runs[HOPGEMM]),
        "step_ms": gpt_training.median_step_ms(
            {name: run.step for name, run in runs.items()}, rounds=1 if options.small else 5
        ),
    }
    gpt_training.report(record, options.json)
    return record


if __name__ == "__main__":
    main()
