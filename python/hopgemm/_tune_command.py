"""`hopgemm tune`: `hopgemm.tune` from the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from . import _cache
from ._cli import failed, part, positive, shapes
from ._shapes import SUITES, select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hopgemm tune`."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--shapes", type=shapes, metavar="MxNxK[,...]", help="these products")
    which.add_argument("--suite", choices=tuple(SUITES), help="the products of a benchmark suite")
    parser.add_argument(
        "--part",
        type=part,
        default=(1, 1),
        metavar="i/n",
        help="of the suite, every n-th shape, from the i-th",
    )
    parser.add_argument(
        "--dtype", type=_list("bf16", "fp16"), default=["bf16"], help="of the operands (bf16)"
    )
    parser.add_argument(
        "--majors",
        type=_list("kk", "kn", "mk", "mn"),
        default=["kk"],
        help="contiguous dimensions (kk); several with commas, all at kk,kn,mk,mn",
    )
    parser.add_argument("--out-dtype", choices=("fp32",), help="of the result (the operands')")
    parser.add_argument("--batch", type=positive, default=1, metavar="B", help="products in one call (1)")
    parser.add_argument("--batch-invariant", action="store_true", help="for batch-invariant calls")
    parser.add_argument("--sm-limit", type=positive, metavar="N", help="for calls that use at most N SMs")
    parser.add_argument(
        "--framework", choices=("auto", "torch", "jax"), default="auto", help="through which (torch if there)"
    )
    parser.add_argument("--no-save", action="store_true", help="leave the cache alone")
    parser.add_argument("--json", action="store_true", help="print JSON")


def command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs what add_arguments() parsed. 0: done; 1: no GPU or framework; 2: the command line is wrong."""
    from ._tune import tune

    try:
        found = tune(
            options.shapes or select(options.suite, options.part),
            dtype=options.dtype,
            majors=options.majors,
            out_dtype=options.out_dtype,
            batch=options.batch,
            batch_invariant=options.batch_invariant or None,
            sm_limit=options.sm_limit,
            framework=options.framework,
            save=not options.no_save,
        )
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        return failed(error)
    if options.json:
        print(json.dumps([x.as_json() for x in found], indent=1))
        return 0
    for x in found:
        gain = x.default_microseconds / x.microseconds
        print(f"{x.key}: {x.microseconds:.1f} us, {gain:.3f} of the untuned speed  {x.config}")
    path = _cache.location()
    print("kept for this process alone" if options.no_save or path is None else f"kept in {path}")
    return 0


def _list(*choices: str) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        values = text.split(",")
        for value in values:
            if value not in choices:
                raise argparse.ArgumentTypeError(f"{value!r}: must be of {', '.join(choices)}")
        return values

    return parse
