"""The command line: `hopgemm` or `python -m hopgemm`.

Exit status: 0 done, 1 it could not be done or a result is wrong, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import _verify
from ._shapes import SUITES, Shape, parse_shape, select


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hopgemm", description="Matrix products for NVIDIA Hopper, from PyTorch and from JAX."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, text: str, example: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run, parser=sub)
        return sub

    info = command(
        "info", _info, "What there is on this machine: versions, GPUs, settings.", "hopgemm info --json"
    )
    info.add_argument("--json", action="store_true", help="print JSON")

    demo = command("demo", _demo, "One product through PyTorch and through JAX.", "hopgemm demo --size 2048")
    demo.add_argument(
        "--size", type=_positive, metavar="N", help="N x N matrices (4096; without a Hopper GPU 512)"
    )
    demo.add_argument("--json", action="store_true", help="print JSON")

    plan = command(
        "plan",
        _plan,
        "What a product would run, and why, on an H200.",
        "hopgemm plan 4096 4096 4096 --majors kn",
    )
    for name in ("m", "n", "k"):
        plan.add_argument(name, type=int, metavar=name.upper())
    plan.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="of the operands (bf16)")
    plan.add_argument("--out-dtype", choices=("bf16", "fp16", "fp32"), help="of the result (the operands')")
    plan.add_argument(
        "--majors", choices=("kk", "kn", "mk", "mn"), default="kk", help="contiguous dimensions (kk)"
    )
    plan.add_argument("--batch", type=_sizes, default=(), metavar="B[,B]", help="batch dimensions")
    plan.add_argument("--device", help="a GPU of this machine, such as cuda:0, in place of an H200")
    plan.add_argument("--json", action="store_true", help="print JSON")

    _add_bench(
        command(
            "bench",
            _bench,
            "Speed beside cuBLAS, on a Hopper GPU.",
            "hopgemm bench --suite core --json core.json",
        )
    )
    _verify.add_arguments(
        command(
            "verify",
            lambda options: _verify.command(options, options.parser),
            "Every compiled kernel on the emulated machine, without a GPU.",
            "hopgemm verify --seeds 8",
        )
    )
    return parser


def _add_bench(bench: argparse.ArgumentParser) -> None:
    which = bench.add_mutually_exclusive_group()
    which.add_argument("--suite", choices=tuple(SUITES), default="core", help="which shapes (core: 12)")
    which.add_argument(
        "--shapes", type=_shapes, metavar="MxNxK[,...]", help="these shapes instead of a suite"
    )
    bench.add_argument(
        "--part", type=_part, default=(1, 1), metavar="i/n", help="every n-th shape, from the i-th"
    )
    bench.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="of the operands (bf16)")
    bench.add_argument(
        "--layout", choices=("kk", "kn", "mk", "mn"), default="kk", help="contiguous dimensions (kk)"
    )
    bench.add_argument(
        "--protocol",
        choices=("auto", "sustained", "burst", "single"),
        default="auto",
        help="how to time; auto: sustained for the big squares and over 1 ms, else single",
    )
    bench.add_argument(
        "--baseline",
        choices=("auto", "torch", "jax"),
        default="auto",
        help="through which framework (torch if there)",
    )
    bench.add_argument(
        "--config", type=_names, default=("",), metavar="NAME[,...]", help="these kernels, not the choice"
    )
    bench.add_argument(
        "--seconds-per-shape",
        type=float,
        default=0.0,
        metavar="S",
        help="more rounds, up to S seconds a shape",
    )
    bench.add_argument(
        "--json", type=Path, metavar="FILE", help="write records there; an existing file is continued"
    )


def _info(options: argparse.Namespace) -> int:
    from . import _info

    info = _info.collect()
    print(json.dumps(info, indent=1) if options.json else _info.render(info))
    return 0


def _demo(options: argparse.Namespace) -> int:
    from . import _demo

    result = _demo.run(options.size)
    print(json.dumps(_demo.as_json(result), indent=1) if options.json else _demo.render(result))
    return 0 if result["ok"] else 1


def _plan(options: argparse.Namespace) -> int:
    from ._plan import plan

    try:
        result = plan(
            m=options.m,
            n=options.n,
            k=options.k,
            dtype=options.dtype,
            out_dtype=options.out_dtype,
            majors=options.majors,
            batch=options.batch,
            device=options.device,
        )
    except ValueError as error:
        options.parser.error(str(error))
    except RuntimeError as error:  # no such GPU
        return _failed(error)
    print(json.dumps(asdict(result), indent=1) if options.json else result)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from ._bench import Task, open_session

    try:
        shapes = options.shapes or select(options.suite, options.part)
        task = Task(
            shapes, options.dtype, options.layout, options.protocol, options.config, options.seconds_per_shape
        )
        session = open_session(task, options.baseline, options.json)
    except ValueError as error:  # such as a part beyond the last, or a file from another commit
        options.parser.error(str(error))
    except RuntimeError as error:  # no GPU, or no framework
        return _failed(error)
    return 0 if session.measure(lambda line: print(line, flush=True)) else 1


def _failed(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 1


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a positive integer")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _shapes(text: str) -> tuple[Shape, ...]:
    try:
        return tuple(map(parse_shape, text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _part(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be i/n, such as 1/4")
    return int(index), int(count)
