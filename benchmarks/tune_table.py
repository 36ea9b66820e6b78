"""Measures winners for the shipped table, on all of this machine's H200s at once.

    python benchmarks/tune_table.py --gpus 4 --json benchmarks/results/DATE-h200-table-bf16.json
    python benchmarks/make_table.py

Small M and the core suite come first, longer products before shorter ones, one layout after the other; then
the products of GPT-2's training steps (alone: --suite gpt2), which are timed on a cool card. What the
benchmarks compare sustained is not among them: make_table.py says why. A run continues the file that it
finds, and the parts that an interrupted one has left beside it. Where a winner splits K, the best that does
not is recorded too.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import is_sustained, of_training
from pool import Pool
from tune_worker import Records

from hopgemm import _core, _tune
from hopgemm._cache import Key
from hopgemm._shapes import GPT2_LAYERS, SUITES, Shape
from hopgemm._tune_race import LONG_US

LAYOUTS = ("kk", "kn", "mn", "mk")
GPT2 = "gpt2"
WORKER = (sys.executable, str(Path(__file__).with_name("tune_worker.py")))
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_SMALL_M = 256
_FLOPS = 6e14  # a second, roughly, to guess how long a product takes
_SHORT_S, _LONG_S = 0.7, 3.5  # to tune one, guessed; long: from LONG_US on
_START_S = 15.0  # of a process


@dataclass(frozen=True)
class Job:
    """One product, as `pool.Pool` takes it."""

    product: Key

    @property
    def key(self) -> tuple[str]:
        """What the pool calls it."""
        return (str(self.product),)

    @property
    def expected_s(self) -> float:
        """Seconds on a GPU, roughly."""
        return _expected_s((self.product.m, self.product.n, self.product.k))


def products(
    suite: str, layouts: Iterable[str], dtype: str, gpu: dict[str, Any], max_m: float = math.inf
) -> list[Key]:
    """What is to be measured, in order, each kernel's problem once. gpu: "name" and "sm_count"."""
    where = {"facts": {"name": gpu["name"], "sm_count": gpu["sm_count"]}, "sm_limit": 0}
    where["batch_invariant"] = False

    def order(shape: Shape) -> tuple[bool, float]:
        return not (shape[0] <= _SMALL_M or shape in SUITES["core"]), -_expected_s(shape)

    layouts, shapes = list(layouts), sorted(SUITES.get(suite, ()), key=order)
    found = [(x, layout) for layout in layouts for x in shapes if x[0] <= max_m]
    if suite in ("all", GPT2):
        found += [(x, layout) for x, layout in of_training(GPT2_LAYERS) if layout in layouts]
    keys = (
        _tune.key_of(x, dtype, layout, 1, dtype, where) for x, layout in found if not is_sustained(x, layout)
    )
    return list(dict.fromkeys(keys))


def _expected_s(shape: Shape) -> float:
    m, n, k = shape
    seconds = 2 * m * n * k / _FLOPS
    return (_SHORT_S if seconds * 1e6 < LONG_US else _LONG_S) + 100 * seconds


def absorb(records: Records) -> None:
    """Takes over, and removes, the parts of a run that lie beside the file."""
    for path in sorted(records.path.parent.glob(f"{records.path.stem}.gpu*.json")):
        records.add(Records(path, records.header["gpu"]).records)
        path.unlink()


def run(
    keys: list[Key], records: Records, gpus: int, budget_s: float, worker: Iterable[str] = WORKER
) -> bool:
    """Measures on so many GPUs at once. False if anything failed."""
    parts = [records.path.with_suffix(f".gpu{i}.json") for i in range(gpus)]
    pool = Pool([Job(key) for key in keys], parts, budget_s, lambda line: print(line, flush=True))
    try:
        return pool.run(list(worker))
    finally:
        absorb(records)
        print(f"{records.path}: {len(records.records)} records; {len(pool.left)} products left", flush=True)


def main() -> int:
    """Measures; 1 where anything went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=(*SUITES, GPT2), default="all")
    parser.add_argument("--max-m", type=int, default=math.inf, help="of the suite's shapes")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="in this order (%(default)s)")
    parser.add_argument("--dtype", choices=tuple(_DTYPES), default="bf16")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="begin no product that would end after S seconds"
    )
    options = parser.parse_args()
    layouts = options.layouts.split(",")
    if not set(layouts) <= set(LAYOUTS):
        parser.error(f"--layouts {options.layouts}: must be of {', '.join(LAYOUTS)}")
    if not 1 <= options.gpus <= _core.device_count():
        parser.error(f"--gpus {options.gpus}: this machine has {_core.device_count()}")
    gpu = _core.device_info(0)
    try:
        records = Records(options.json, gpu["name"])
        absorb(records)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    done = records.keys()
    keys = [
        x
        for x in products(options.suite, layouts, _DTYPES[options.dtype], gpu, options.max_m)
        if x not in done
    ]
    guess = _START_S + sum(Job(key).expected_s for key in keys) / options.gpus
    print(f"{len(keys)} products on {options.gpus} GPUs, about {guess:.0f} s", flush=True)
    return 0 if run(keys, records, options.gpus, options.budget_s) else 1


if __name__ == "__main__":
    raise SystemExit(main())
