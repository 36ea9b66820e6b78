"""`hopgemm selftest`: exact products on this machine's GPU, a spread of kinds and then a soak at random.

Operands are small integers, whose sums fp32 holds exactly, inside buffers of NaN; results lie inside
canaries. Every element is compared bit for bit with the framework's fp32 product, rounded once. With PyTorch
everything is tried; with JAX alone what JAX can express (`_selftest_jax`).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from . import _config_name, _core
from ._progress import Bar

_SIZES = (1, 2, 3, 7, 8, 15, 16, 31, 64, 65, 72, 127, 128, 129, 200, 255, 256, 264, 520, 1000)
_SHAPES = (
    (1, 1, 1),
    (128, 256, 64),
    (129, 257, 72),
    (300, 520, 200),
    (1, 4096, 136),
    (2000, 9, 1000),
    (65, 127, 33),
)
_CHUNK = 64  # cases between two looks at the results


@dataclass(frozen=True)
class Case:
    """One product. padded: rows that TMA reads in place, else dense ones; batch: 0 is none."""

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    majors: str = "kk"
    padded: bool = True
    out_dtype: str = ""
    batch: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False
    sm_limit: int = 0
    batch_invariant: bool = False
    config: str = ""
    seed: int = 0


class Runner(Protocol):
    """A framework: starts a case, and says what is wrong with those it started."""

    name: str

    def takes(self, case: Case) -> bool:
        """Can it express this case?"""
        ...

    def start(self, case: Case) -> None:
        """Enqueues the product and its comparison."""
        ...

    def finish(self) -> list[tuple[Case, str]]:
        """Waits; the cases that came out wrong, and how."""
        ...


def spread(configs: list[str]) -> Iterator[Case]:
    """Every kind of product once: shapes, layouts, dtypes, each option, and each kernel by name."""
    kinds = itertools.product(_SHAPES, ("bfloat16", "float16"), ("kk", "kn", "mk", "mn"), (True, False))
    for i, ((m, n, k), dtype, majors, padded) in enumerate(kinds):
        out_dtype = "float32" if i % 3 == 0 else dtype
        yield Case(m, n, k, dtype, majors, padded, out_dtype, seed=i)
    options: tuple[dict[str, Any], ...] = (
        {"batch": 3},
        {"bias": True},
        {"alpha": -2.0},
        {"alpha": 0.0},
        {"beta": 1.0},
        {"alpha": 0.5, "beta": -2.0, "bias": True, "batch": 2},
        {"sm_limit": 1},
        {"sm_limit": 50},
        {"batch_invariant": True},
    )
    for i, (option, (m, n, k)) in enumerate(itertools.product(options, ((129, 264, 72), (257, 65, 130)))):
        yield Case(m, n, k, padded=i % 2 == 0, seed=i, **option)
    for i, config in enumerate(configs):
        kernel = _config_name.parse(config)
        dtype = {"bf16": "bfloat16", "f16": "float16"}[kernel.dtype]
        yield Case(393, 520, 328, dtype, kernel.majors, config=config, seed=i)


def soak(seed: int) -> Iterator[Case]:
    """Cases at random, without end."""
    draw = random.Random(seed)
    for number in itertools.count():
        big = draw.random() < 0.2
        m, n, k = (draw.randint(1, 4096) if big else draw.choice(_SIZES) for _ in range(3))
        dtype = draw.choice(("bfloat16", "float16"))
        yield Case(
            m,
            n,
            k,
            dtype,
            draw.choice(("kk", "kn", "mk", "mn")),
            draw.random() < 0.6,
            draw.choice((dtype, "float32")),
            0 if big else draw.choice((0, 0, 0, 1, 2, 5)),
            draw.choice((1.0, 1.0, 2.0, -0.5)),
            draw.choice((0.0, 0.0, 1.0, -2.0)),
            draw.random() < 0.3,
            draw.choice((0, 0, 0, 1, 7, 66)),
            draw.random() < 0.2,
            seed=number,
        )


def run(
    runner: Runner, seconds: float, seed: int, report: Callable[[float, str], None] = lambda done, text: None
) -> dict[str, Any]:
    """The spread, then a soak until `seconds` have passed since the start.

    It ends at the first chunk with a wrong product.

    Returns:
        `{"framework", "seconds", "seed", "spread", "soak", "wrong": [{...case, "problem"}], "ok"}`.
    """
    start = time.monotonic()
    result: dict[str, Any] = {"framework": runner.name, "seed": seed, "spread": 0, "soak": 0}
    wrong: list[tuple[Case, str]] = []
    known = [case for case in spread(_core.configs()) if runner.takes(case)]
    for i, case in enumerate(known, 1):
        runner.start(case)
        result["spread"] = i
        if i % _CHUNK == 0 or i == len(known):
            wrong += runner.finish()
            report(
                min(i / len(known), (time.monotonic() - start) / seconds if seconds else 1.0), "the spread"
            )
    cases = filter(runner.takes, soak(seed))
    while not wrong and time.monotonic() - start < seconds:
        for case in itertools.islice(cases, _CHUNK):
            runner.start(case)
            result["soak"] += 1
        wrong += runner.finish()
        report((time.monotonic() - start) / seconds, f"soak: {result['soak']} products")
    result["seconds"] = time.monotonic() - start
    result["wrong"] = [{**asdict(case), "problem": problem} for case, problem in wrong]
    return {**result, "ok": not wrong}


def open_runner(framework: str = "auto") -> Runner:
    """PyTorch's where it is installed, else JAX's. RuntimeError without a framework or a Hopper GPU."""
    way_out = "`hopgemm verify` runs every kernel without a GPU, on the emulated machine"
    names = ("torch", "jax") if framework == "auto" else (framework,)
    if _core.device_count() == 0:
        raise RuntimeError(f"hopgemm selftest: no GPU or no driver here. {way_out}")
    gpu = _core.device_info(0)
    if tuple(gpu["compute_capability"]) != (9, 0):
        found = ".".join(map(str, gpu["compute_capability"]))
        raise RuntimeError(
            f"hopgemm selftest: {gpu['name']} is of compute capability {found}; 9.0 is needed. {way_out}"
        )
    for name in names:
        if importlib.util.find_spec(name) is not None:
            runner: Runner = importlib.import_module(f"{__package__}._selftest_{name}").Runner()
            return runner
    raise RuntimeError(f"hopgemm selftest: {' or '.join(names)} is not installed. {way_out}")


def render(result: dict[str, Any]) -> str:
    """One line."""
    total = result["spread"] + result["soak"]
    where = f"through {result['framework']} in {result['seconds']:.0f} s, seed {result['seed']}"
    if result["ok"]:
        return (
            f"selftest: {total} products exact ({result['spread']} kinds, {result['soak']} at random) {where}"
        )
    first = result["wrong"][0]
    return f"selftest: {len(result['wrong'])} of {total} products WRONG {where}; the first: {first}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hopgemm selftest`."""
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="how long in all (20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random part (0)")
    parser.add_argument(
        "--framework", choices=("auto", "torch", "jax"), default="auto", help="through which (torch if there)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs what add_arguments() parsed. 0: all exact; 1: not, or no GPU; 2: the command line is wrong."""
    if not 0 <= options.seconds < float("inf"):
        parser.error(f"--seconds is {options.seconds}; must be 0 or more")
    try:
        runner = open_runner(options.framework)
        with Bar() as bar:
            result = run(runner, options.seconds, options.seed, bar.update)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=1) if options.json else render(result))
    return 0 if result["ok"] else 1
