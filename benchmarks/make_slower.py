"""Writes src/host/h200_slower.cc: the products at which cuBLAS was measured to be faster than the kernel.

    python benchmarks/make_slower.py RESULTS.json... [-o src/host/h200_slower.cc]

`hopgemm.torch.override()` leaves these to it. RESULTS are files of the benchmarks; listed is what is slower
than MOST in the geometric mean of RUNS of them or more: less is within what runs differ by. Records of a
kernel that is no longer chosen do not count.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from make_table import GPU, MAJOR, SM_COUNT

from hopgemm._bench_case import TRAINING_LAYOUTS
from hopgemm._bench_results import load
from hopgemm._cache import Key
from hopgemm._shapes import Shape, parse_shape
from hopgemm._tune_race import plan_of

OUTPUT = Path(__file__).parent.parent / "src/host/h200_slower.cc"
MOST, RUNS = 0.98, 2  # of cuBLAS's speed

_FILE = """\
// Written by benchmarks/make_slower.py from {sources}.
#include "host/slower.h"

namespace hopgemm {{

std::span<const Product> h200_slower() {{
  using enum Major;
  static constexpr Product kProducts[] = {{
      // clang-format off
{rows}      // clang-format on
  }};
  return kProducts;
}}

}}  // namespace hopgemm
"""


def slower(records: Iterable[dict[str, Any]]) -> list[tuple[Shape, str, float]]:
    """(M, N, K), majors and the mean ratio to cuBLAS of each product that is slower than MOST."""
    ratios = defaultdict(list)
    for record in records:
        is_usual = (record["contender"], record["requested"], record["correct"]) == ("hopgemm", "", True)
        if not is_usual or record["dtype"] != "bf16" or record["layout"] in TRAINING_LAYOUTS:
            continue
        shape, majors = parse_shape(record["shape"]), record["layout"]
        key = Key("bfloat16", "bfloat16", majors, *shape, 1, 1, SM_COUNT, False)
        if record["config"] == plan_of(key, GPU, tuned=False)["config"]:
            ratios[shape, majors].append(math.log(record["ratio_to_cublas"]))
    means = ((*product, math.exp(sum(x) / len(x))) for product, x in ratios.items() if len(x) >= RUNS)
    return sorted(x for x in means if x[2] < MOST)


def render(products: Iterable[tuple[Shape, str, float]], sources: Iterable[str]) -> str:
    """The C++ file."""
    rows = "".join(
        f"      {{{m}, {n}, {k}, {MAJOR[majors[0]]}, {MAJOR[majors[1]]}}},  // {ratio:.3f}\n"
        for (m, n, k), majors, ratio in products
    )
    return _FILE.format(sources=", ".join(sources), rows=rows)


def main() -> None:
    """Writes the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULTS.json")
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, metavar="FILE")
    options = parser.parse_args()
    products = slower(record for file in options.files for record in load(file)["records"])
    options.output.write_text(render(products, [file.name for file in options.files]))
    print(f"{options.output}: {len(products)} products")


if __name__ == "__main__":
    main()
