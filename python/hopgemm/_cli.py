"""The command line: `hopgemm` or `python -m hopgemm`.

Exit status: 0 done, 1 it could not be done or a result is wrong, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from ._progress import Bar
from ._shapes import SUITES, Shape, parse_shape, select


class Command(NamedTuple):
    """module: has `add_arguments(parser)` and `command(options, parser) -> int`; "": they are in `_HERE`."""

    text: str
    example: str
    module: str = ""


COMMANDS = {
    "info": Command("What there is on this machine: versions, GPUs, settings.", "info --json"),
    "demo": Command("One product through PyTorch and through JAX.", "demo --size 2048"),
    "plan": Command("What a product would run, and why, on an H200.", "plan 4096 4096 4096 --majors kn"),
    "bench": Command("Speed beside cuBLAS, on a Hopper GPU.", "bench --suite core --json core.json"),
    "ladder": Command(
        "The steps from CUDA cores to the kernel, each beside cuBLAS.", "ladder --size 4096", "_ladder"
    ),
    "tune": Command(
        "The fastest kernel for given products, on this machine's Hopper GPU; kept in the cache.",
        "tune --shapes 4096x4096x4096,64x28672x4096 --majors kk,kn",
        "_tune_command",
    ),
    "trace": Command(
        "What every role of every CTA does when, on a GPU or modelled; and the order of the tiles.",
        "trace 4096 4096 4096 --out trace.html",
        "_trace",
    ),
    "verify": Command(
        "Every compiled kernel on the emulated machine, without a GPU.", "verify --seeds 8", "_verify"
    ),
    "selftest": Command(
        "Exact products of every kind on this machine's Hopper GPU, then at random.",
        "selftest --seconds 60",
        "_selftest",
    ),
    "cache": Command(
        "The file of tuned configs: where it is, and what is in it.", "cache show", "_cache_command"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(given[:1]).parse_args(given)
    try:
        status: int = options.run(options, options.parser)
        sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`; and nothing more may be written when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser(wanted: Sequence[str]) -> argparse.ArgumentParser:
    """All commands by name, but only the arguments of those wanted: their modules take time to import."""
    parser = argparse.ArgumentParser(
        prog="hopgemm", description="Matrix products for NVIDIA Hopper, from PyTorch and from JAX."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.text,
            description=command.text,
            epilog=f"example:\n  hopgemm {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name not in wanted:
            continue
        if command.module:
            module = importlib.import_module(f"{__package__}.{command.module}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.command, parser=sub)
        else:
            add_arguments, run = _HERE[name]
            add_arguments(sub)
            sub.set_defaults(run=run, parser=sub)
    return parser


def _add_info(info: argparse.ArgumentParser) -> None:
    info.add_argument("--json", action="store_true", help="print JSON")


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument(
        "--size", type=positive, metavar="N", help="N x N matrices (4096; without a Hopper GPU 512)"
    )
    demo.add_argument("--json", action="store_true", help="print JSON")


def _add_plan(plan: argparse.ArgumentParser) -> None:
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


def _add_bench(bench: argparse.ArgumentParser) -> None:
    which = bench.add_mutually_exclusive_group()
    which.add_argument("--suite", choices=tuple(SUITES), default="core", help="which shapes (core: 12)")
    which.add_argument("--shapes", type=shapes, metavar="MxNxK[,...]", help="these shapes instead of a suite")
    bench.add_argument(
        "--part", type=part, default=(1, 1), metavar="i/n", help="every n-th shape, from the i-th"
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


def _info(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from . import _info

    info = _info.collect()
    print(json.dumps(info, indent=1) if options.json else _info.render(info))
    return 0


def _demo(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from . import _demo

    with Bar() as bar:
        bar.update(0.0, "a product through each framework")
        result = _demo.run(options.size)
    print(json.dumps(_demo.as_json(result), indent=1) if options.json else _demo.render(result))
    return 0 if result["ok"] else 1


def _plan(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
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
        parser.error(str(error))
    except RuntimeError as error:  # no such GPU
        return failed(error)
    print(json.dumps(asdict(result), indent=1) if options.json else result)
    return 0


def _bench(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from ._bench import Task, open_session

    try:
        chosen = options.shapes or select(options.suite, options.part)
        task = Task(
            chosen, options.dtype, options.layout, options.protocol, options.config, options.seconds_per_shape
        )
        with Bar() as bar:
            bar.update(0.0, "what this card can do at most")
            session = open_session(task, options.baseline, options.json)
            lines: list[str] = []

            def report(line: str) -> None:
                lines.append(line)
                bar.print(line)
                done = len({text.partition(" ")[0] for text in lines})
                bar.update(done / len(chosen), f"{done} of {len(chosen)} shapes")

            return 0 if session.measure(report) else 1
    except ValueError as error:  # such as a part beyond the last, or a file from another commit
        parser.error(str(error))
    except RuntimeError as error:  # no GPU, or no framework
        return failed(error)


def failed(error: Exception) -> int:
    """Says why on standard error; the exit status."""
    print(f"error: {error}", file=sys.stderr)
    return 1


def positive(text: str) -> int:
    """An argument that is a positive integer."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a positive integer")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(positive, text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def shapes(text: str) -> tuple[Shape, ...]:
    """An argument such as 4096x4096x4096,64x28672x4096."""
    try:
        return tuple(map(parse_shape, text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def part(text: str) -> tuple[int, int]:
    """An argument such as 1/4."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be i/n, such as 1/4")
    return int(index), int(count)


_HERE = {
    "info": (_add_info, _info),
    "demo": (_add_demo, _demo),
    "plan": (_add_plan, _plan),
    "bench": (_add_bench, _bench),
}
