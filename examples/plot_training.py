"""Plots what train_gpt_torch.py and train_gpt_jax.py recorded: losses, and how far two runs drift apart.

python examples/plot_training.py torch.json jax.json      writes torch.png and jax.png beside them
"""

import json
import pathlib
import sys

import matplotlib.pyplot as plt
import numpy as np
from gpt_training import FRAMEWORK


def plot(record, path):
    """One figure: the loss of each run above, its distance from the framework's below."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
    base = np.array(record["loss"][FRAMEWORK])
    for name, loss in record["loss"].items():
        ms = record["step_ms"][name]
        above.plot(loss, label=f"{name} ({ms:.1f} ms a step)", linewidth=1)
        if name != FRAMEWORK:
            steps = np.arange(9, len(base), 10)
            below.plot(steps, abs(np.array(loss) - base)[steps], "o-", label=name, markersize=3)
    share = f"{record['gemm']['hopgemm'] / record['gemm']['total']:.1%} of GEMM FLOPs in hopgemm"
    above.set(ylabel="loss", title=f"{record['framework']} on {record['device']}: {share}")
    below.set(xlabel="step", ylabel=f"|loss - {FRAMEWORK}'s|")
    for axes in (above, below):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for argument in map(pathlib.Path, sys.argv[1:]):
        plot(json.loads(argument.read_text()), argument.with_suffix(".png"))
