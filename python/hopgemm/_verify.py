"""`hopgemm verify`: every compiled kernel on the emulated machine, against exact products.

Each runs under many schedules.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import _config_name
from ._emulate import EmulationError, configs, emulate
from ._progress import Bar

_MUTANT = re.compile(r"\| (k\w+ \(\w+\)) \| (\d+) \| ([\d.]+)% \|")


@dataclass
class Verified:
    """One kernel. `failure`: the first that was found, with the seed that shows it again; else empty."""

    name: str
    runs: int = 0
    ok: bool = True
    failure: str = ""


def run(
    config: str | None = None, seeds: int = 4, report: Callable[[Verified], None] = lambda _: None
) -> dict[str, Any]:
    """Runs `seeds` schedules of each kernel, or of the one named. Cases change with the seed.

    Returns:
      `{"instances": [{"name", "runs", "ok", "failure"}], "ok": bool}`.

    Raises:
      ValueError: there is no kernel of that name, or seeds is below 1.
    """
    if seeds < 1:
        raise ValueError(f"hopgemm.verify: seeds is {seeds}; it must be 1 or more")
    names = configs()
    if config is not None and config not in names:
        raise ValueError(f"hopgemm.verify: no kernel is named {config!r}. Take one of: {', '.join(names)}")
    instances = []
    for name in names if config is None else [config]:
        result = Verified(name)
        for seed in range(seeds):
            result.runs += 1
            failure = _run_once(name, seed)
            if failure:
                result.ok, result.failure = False, failure
                break
        instances.append(result)
        report(result)
    return {"instances": [asdict(x) for x in instances], "ok": all(x.ok for x in instances)}


def run_mutants(source: Path, seeds: int) -> list[dict[str, Any]]:
    """Runs the broken kernels of a source checkout where `ci/cpp` has compiled them, `seeds` schedules each.

    Returns:
      `[{"name", "runs", "caught"}]`.

    Raises:
      ValueError: there is no such program.
      RuntimeError: a mutant was not caught, or its clean twin was accused; the message is what the program
        printed.
    """
    program = (source / "build" / "cpp" / "mutants_test").resolve()
    if not program.exists():
        raise ValueError(
            f"hopgemm.verify: {program} does not exist. Run ci/cpp in a source checkout, and name that"
        )
    done = subprocess.run([program, str(seeds)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return [
        {"name": name, "runs": int(runs), "caught": round(int(runs) * float(percent) / 100)}
        for name, runs, percent in _MUTANT.findall(done.stdout)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Exit status 0: all kernels passed; 1: one did not; 2: the command line is wrong."""
    parser = argparse.ArgumentParser(prog="hopgemm verify", description=__doc__)
    add_arguments(parser)
    return command(parser.parse_args(arguments), parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hopgemm verify`."""
    parser.add_argument("--config", metavar="NAME", help="this kernel alone")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="schedules for each kernel (4)")
    parser.add_argument(
        "--mutants",
        type=Path,
        metavar="SOURCE",
        help="a source checkout in which ci/cpp has run: run its broken kernels, too",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs what add_arguments() parsed; see main()."""

    total, done = 1 if options.config else len(configs()), 0
    try:
        with Bar() as bar:

            def report(x: Verified) -> None:
                nonlocal done
                done += 1
                if not options.json:
                    bar.print(f"{x.name:40} {x.runs:4} runs  {'ok' if x.ok else 'FAILED: ' + x.failure}")
                bar.update(done / total, f"{done} of {total} kernels")

            result = run(options.config, options.seeds, report)
            if options.mutants:
                bar.update(1.0, "broken kernels")
                result["mutants"] = run_mutants(options.mutants, options.seeds)
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        print(error)
        return 1
    for x in result.get("mutants", ()):
        if not options.json:
            print(f"{x['name']:40} {x['runs']:4} runs  {x['caught']} caught")
    if options.json:
        print(json.dumps(result, indent=1))
    return 0 if result["ok"] else 1


def _run_once(name: str, seed: int) -> str:
    import numpy as np

    kernel = _config_name.parse(name)
    down, across = kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n
    random = np.random.default_rng(seed)
    # In turn: tails in every dimension; a ring that wraps; several tiles a CTA with a batch; one tile.
    m, n, k, batch = (
        (down + 5, across + 3, kernel.tile_k + 9, ()),
        (kernel.tile_m, kernel.tile_n, (kernel.stages + 2) * kernel.tile_k, ()),
        (2 * down, across, 2 * kernel.tile_k, (2,)),
        (kernel.tile_m - 1, kernel.tile_n - 1, 1, ()),
    )[seed % 4]
    a = _operand(random, kernel.dtype, (*batch, m, k), transposed=kernel.majors[0] == "m")
    b = _operand(random, kernel.dtype, (*batch, k, n), transposed=kernel.majors[1] == "k")
    exact = a.astype(np.float32) @ b.astype(np.float32)
    try:
        found = emulate(
            a, b, config=name, seed=seed, sm_count=2 * kernel.cluster_m * kernel.cluster_n, log=False
        )
    except EmulationError as error:
        return str(error)
    same = found.product.view(np.uint16) == exact.astype(a.dtype).view(np.uint16)
    if same.all():
        return ""
    return f"seed {seed}, {m} x {n} x {k}: wrong number at {np.argwhere(~same)[0].tolist()}"


def _operand(random: Any, dtype: str, shape: tuple[int, ...], transposed: bool) -> Any:
    """Small integers, rows padded to what TMA can address, in memory as the kernel's majors want them."""
    import ml_dtypes
    import numpy as np

    *batch, rows, cols = shape
    if transposed:
        rows, cols = cols, rows
    padded = np.zeros(
        (*batch, rows, -(-cols // 8) * 8), ml_dtypes.bfloat16 if dtype == "bf16" else np.float16
    )
    x = padded[..., :cols]
    x[...] = random.integers(-2, 3, x.shape)
    return x.swapaxes(-1, -2) if transposed else x
