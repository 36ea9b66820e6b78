"""Ranks schedules of a product by what the L2 model says they read from DRAM; what to measure next.

    python benchmarks/l2_model.py 8192 8192 8192
    python benchmarks/l2_model.py 4096 4096 4096 --kernel bf16_kk_128x128x64_c2x1_s6_pingpong --best 20

Tries strips of every width along M and along N, K forwards and turning with each wave, grids of 132 CTAs
down to 120, and the result evict-first. A schedule is worth measuring where it reads less in no more waves.
`--step-k 64`, the default, is what the tests hold against measurements; 256 is quicker and close.
"""

import argparse
import itertools

from hopgemm._l2_model import traffic
from hopgemm._tile_order import scheduled


def schedules(m_blocks, n_blocks, cluster_size):
    """(schedule as text, CTAs) of everything that is tried."""
    for ctas in (132, 128, 120):
        pool = ctas // cluster_size
        for axis, across in (("m", n_blocks), ("n", m_blocks)):
            for group in range(1, min(across, 16) + 1):
                turns = ["", f"+k{pool // group}"] if pool % group == 0 else [""]
                for parts in itertools.product(turns, ("", "+df")):
                    yield f"+{axis}{group}+ctas{ctas}{''.join(parts)}", ctas


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("m", "n", "k"):
        parser.add_argument(name, type=int)
    parser.add_argument("--kernel", default="bf16_kk_128x256x64_c2x1_s4_coop")
    parser.add_argument("--best", type=int, default=12, help="print so many (12)")
    parser.add_argument("--step-k", type=int, default=64)
    options = parser.parse_args()

    first = scheduled(options.kernel, options.m, options.n, options.k, 132)
    m_blocks, n_blocks = -(-options.m // first.tile_m), -(-options.n // first.tile_n)
    found = []
    for schedule, ctas in schedules(m_blocks, n_blocks, 132 // first.pool):
        walk = scheduled(options.kernel + schedule, options.m, options.n, options.k, ctas)
        waves = -(-len(walk.order) // walk.pool)
        found.append((traffic(walk, step_k=options.step_k).dram, waves, schedule))
    compulsory = 2 * options.k * (options.m + options.n)
    print(f"{options.kernel}, {len(found)} schedules; compulsory {compulsory / 1e9:.3f} GB")
    print("GB read  waves  schedule")
    for dram, waves, schedule in sorted(found)[: options.best]:
        print(f"{dram / 1e9:7.3f}  {waves:5}  {schedule}")


if __name__ == "__main__":
    main()
