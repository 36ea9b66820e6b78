"""Draws docs/figures/tile-order.png: which wave takes which tile at 8192^3, from the kernel's own scheduler.

python docs/draw_tile_order.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from hopgemm._tile_order import hilbert, mean_panels, rows, scheduled

CONFIG = "bf16_kk_128x256x64_c2x1_s4_coop"
SIZE = 8192


def main() -> None:
    """Four orders side by side; a colour for each wave of 64 (66 on 132 SMs) cluster tiles."""
    ours, whole = (
        scheduled(CONFIG + grid, SIZE, SIZE, SIZE, ctas) for grid, ctas in (("+ctas128", 128), ("", 132))
    )
    side = SIZE // ours.tile_m
    orders = {
        "row by row, 128 CTAs": (rows(side, side), ours.pool),
        "Hilbert curve, 128 CTAs": (hilbert(side, side), ours.pool),
        "ours, 132 CTAs": (whole.order, whole.pool),
        "ours, 128 CTAs (the default)": (ours.order, ours.pool),
    }
    figure, axes = pyplot.subplots(1, len(orders), figsize=(15, 4.3), layout="constrained")
    for axis, (name, (order, pool)) in zip(axes, orders.items(), strict=True):
        grid = [[0] * side for _ in range(side)]
        for index, block in enumerate(order):
            grid[block.m][block.n] = index // pool
        axis.imshow(grid, cmap="tab20")
        axis.set(
            title=f"{name}\n{mean_panels(order, pool):.1f} panels in flight", xlabel="N, in tiles of 256"
        )
    axes[0].set_ylabel("M, in tiles of 256")
    path = Path(__file__).parent / "figures" / "tile-order.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
