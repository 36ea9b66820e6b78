"""`hopgemm cache`: the file of tuned configs."""

from __future__ import annotations

import argparse
import json

from . import _cache, _core
from ._cli import failed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hopgemm cache`."""
    parser.add_argument(
        "what",
        choices=("path", "show", "check", "clear"),
        help="path: where it is; show: its entries; check: is each of them used here, and why not; "
        "clear: remove it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs what add_arguments() parsed. 1: `check` found an entry that is broken, or the file resists."""
    path = _cache.location()
    if path is None:
        return failed(ValueError(f"there is no cache: {_cache.VARIABLE}=off, or no home folder"))
    entries, problems = _cache.read(path)
    result: dict[str, object] = {"path": str(path)}
    lines = [str(path)]
    if options.what == "show":
        result["entries"] = [x.as_json() for x in entries]
        lines = [
            f"{x.gpu}, CUDA {x.driver}, hopgemm {x.hopgemm}: {x.key}: {x.microseconds:.1f} us "
            f"(untuned {x.default_microseconds:.1f})  {x.config}"
            for x in entries
        ]
    elif options.what == "check":
        for entry in entries:
            if (problem := _cache.problem_of(entry)) is not None:
                problems.append(f"{entry.key}: {problem}")
        here = (_core.driver_version(), _cache.version())
        used = sum((x.driver, x.hopgemm) == here and _cache.problem_of(x) is None for x in entries)
        result |= {"entries": len(entries), "used": used, "problems": problems}
        lines = [*problems, f"{path}: {len(entries)} entries, {used} for this driver and version, "
                 f"{len(problems)} problems"]  # fmt: skip
    elif options.what == "clear":
        try:
            _cache.remove(path)
        except OSError as error:
            return failed(error)
        result["removed"] = len(entries)
        lines = [f"removed {path}, {len(entries)} entries"]
    print(json.dumps(result, indent=1) if options.json else "\n".join(lines))
    return 1 if options.what == "check" and problems else 0
