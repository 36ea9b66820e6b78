"""What train_gpt_torch.py and train_gpt_jax.py share: sizes, text, schedule, timing and the record of a run.

No framework is imported here, so that both examples train the same model on the same batches.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import sysconfig
import time
from collections.abc import Callable
from typing import Any

import numpy as np

FRAMEWORK, HOPGEMM = "framework", "hopgemm"
# The framework's own products once more, every sum of a linear layer in another order, forward and backward.
BACKWARDS, FROM_THE_MIDDLE = "framework, sums backwards", "framework, sums from the middle"


@dataclasses.dataclass(frozen=True)
class Size:
    """A decoder-only transformer and the batches it is trained on."""

    layers: int
    width: int
    heads: int
    vocab: int
    length: int  # tokens of one sequence
    batch: int  # sequences of one step

    def gemm_flops(self) -> int:
        """Of the linear layers in one step: 2 flops a weight and token forward, twice that backward."""
        weights = self.layers * 12 * self.width**2 + self.vocab * self.width
        return 3 * 2 * weights * self.batch * self.length


GPT2_SMALL = Size(layers=12, width=768, heads=12, vocab=50304, length=1024, batch=8)  # 50257, padded to 128
TINY = Size(layers=1, width=32, heads=2, vocab=256, length=16, batch=2)


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that both examples have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="training steps of each run (default: 200)")
    parser.add_argument("--batch", type=int, help="sequences of 1024 tokens a step (default: 8)")
    parser.add_argument("--layers", type=int, help="of the model (default: 12)")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a machine without a GPU")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the record here")
    return parser


def size_of(options: argparse.Namespace) -> Size:
    """The model and batch that the options ask for."""
    size = TINY if options.small else GPT2_SMALL
    return dataclasses.replace(size, batch=options.batch or size.batch, layers=options.layers or size.layers)


def batches(size: Size, steps: int) -> np.ndarray:
    """(steps, batch, length + 1) int32: windows of the text, one token a byte; the same on every call.

    The text is the source of Python's standard library: every machine that runs this has it.
    """
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    data = np.frombuffer(text, np.uint8)
    starts = np.random.default_rng(0).integers(0, len(data) - size.length, (steps, size.batch, 1))
    return data[starts + np.arange(size.length + 1)].astype(np.int32)


def learning_rate(step: int) -> float:
    """20 steps of warm-up, then constant."""
    return 6e-4 * min(1.0, (step + 1) / 20)


def median_step_ms(runs: dict[str, Callable[..., Any]], rounds: int, calls: int = 5) -> dict[str, float]:
    """The median time of a call, in ms; the runs take turns, so that all see the same clocks.

    A turn is `calls` steps and a wait for the last, as in a training loop that logs now and then.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run()  # fills the queue, and settles the clock
            start = time.perf_counter()
            for i in range(calls):
                run(wait=i == calls - 1)
            times[name].append((time.perf_counter() - start) / calls * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def loss_differences(losses: dict[str, list[float]]) -> dict[str, Any]:
    """hopgemm's distance from the framework, beside that of the framework's own runs in other orders.

    Runs drift apart once any sum is rounded differently. What counts is whether ours drifts further: at every
    10th step, beside each of the two (half of the steps are what one more run of the framework would pass),
    and in the root mean square over them.
    """
    base, ours, *others = (
        np.array(losses[name])[9::10] for name in (FRAMEWORK, HOPGEMM, BACKWARDS, FROM_THE_MIDDLE)
    )
    distance, own = abs(ours - base), abs(np.array(others) - base)
    return {
        "every_10th_step": len(base),
        "at_most_framework_drift": [int((distance <= other).sum()) for other in own],
        "rms_hopgemm": float(np.sqrt(np.mean(distance**2))) if len(base) else None,
        "rms_framework": float(np.sqrt(np.mean(own**2))) if len(base) else None,
    }


def report(record: dict[str, Any], path: pathlib.Path | None) -> None:
    """Prints what a run measured, and writes all of it to `path` as JSON."""
    losses, step_ms, share = record["loss"], record["step_ms"], record["gemm"]
    record["differences"] = drift = loss_differences(losses)
    print(f"{record['device']}, {record['framework']}, {record['size']}")
    print(f"{'':<32}{'ms a step':>10}{'first loss':>12}{'last loss':>11}")
    for name, loss in losses.items():
        print(f"{name:<32}{step_ms[name]:>10.2f}{loss[0]:>12.4f}{loss[-1]:>11.4f}")
    print(f"step time, hopgemm / framework: {step_ms[HOPGEMM] / step_ms[FRAMEWORK]:.3f}")
    print(f"GEMM FLOPs in hopgemm, forward and backward: {share['hopgemm'] / share['total']:.1%}")
    if drift["every_10th_step"]:
        print(
            f"drift of the loss, root mean square of every 10th step: hopgemm {drift['rms_hopgemm']:.4f}, "
            f"the framework in other orders {drift['rms_framework']:.4f}"
        )
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n")
