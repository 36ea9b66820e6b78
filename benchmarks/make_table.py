"""Writes src/host/h200_table.cc, the winners that are shipped, from what benchmarks/tune_table.py measured.

    python benchmarks/make_table.py [FILE ...] [-o src/host/h200_table.cc]

Without a FILE: all of benchmarks/results/*-h200-table-*.json, by name; later files win. Every product that
was measured gets an entry, also where the cost model's choice is the fastest: an entry answers for its
neighbours, and a product without one would fall to a neighbour that had another winner. A product that was
measured in one layout alone, kk, gets its winner in the others too: where more were measured, most agree.
A winner that is no longer compiled is left out.
The output depends on the records alone. Products that the benchmarks compare sustained (long ones, the big
squares, the products of Llama's training steps) are left to the cost model, which knows of energy: in short
windows and in turn with others, kernels that waste it look 2 to 5% better than they are.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from jobs import is_sustained

from hopgemm import _config_name, _core
from hopgemm._bench_results import load

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "src/host/h200_table.cc"
GPU, SM_COUNT = "NVIDIA H200", 132  # measured.cc lets the table answer for these alone
MARGIN = 1.01  # within it the cost model's choice stays: a difference that is noise would only change bits

_ARRANGEMENT = {"coop": "kCooperative", "pingpong": "kPingpong", "swap": "kSwapped"}
MAJOR = {"k": "kK", "m": "kMN", "n": "kMN"}
_FIELDS = ("along_m", "group", "max_ctas", "split", "tail", "ranges", "waves")  # of Schedule, in its order
_TOKEN = {"ctas": "max_ctas", "split": "split", "waves": "waves"}
_WIDTH = 105  # of a row, without its indentation
_DTYPES = {"": "kBoth", "bfloat16": "kOnlyBF16", "float16": "kOnlyF16"}

_HEAD = """\
// Written by benchmarks/make_table.py from {sources}.
#include <array>

#include "host/measured.h"

namespace hopgemm {{
namespace {{

using enum Major;
using enum Arrangement;
using enum MeasuredDTypes;
using enum MeasuredFor;
constexpr DType kAny16 = DType::kBF16;

// M, N, K, for which dtypes and problems, config.
// clang-format off
constexpr std::array<Measured, {count}> kTable{{{{
"""
_FOOT = """\
}};
// clang-format on
static_assert(is_table(kTable));

}  // namespace

std::span<const Measured> h200_table() { return kTable; }

}  // namespace hopgemm
"""


class Entry(NamedTuple):
    """One row. majors: the caller's; config: without its dtype; dtype: "" for both."""

    majors: str
    n: int
    m: int
    k: int
    invariant: bool
    dtype: str
    config: str


def entries(records: Iterable[dict[str, Any]]) -> list[Entry]:
    """The rows of the table, in its order; of two records of one product the later counts.

    ValueError for a record of another GPU or of a product that the table does not answer for.
    """
    winners: dict[tuple[Any, ...], dict[str, dict[bool, str]]] = {}
    for record in records:
        _require_plain(record)
        if is_sustained((record["m"], record["n"], record["k"]), record["majors"]):
            continue
        product = tuple(record[name] for name in ("majors", "n", "m", "k"))
        of_dtype = winners.setdefault(product, {}).setdefault(record["dtype"], {})
        choice, use = _choice(record), record["batch_invariant"]
        if not use and choice != of_dtype.get(False):
            of_dtype.clear()  # an older winner's batch-invariant companion goes with it
        of_dtype[use] = choice
    found = []
    for product, by_dtype in winners.items():
        rows = {dtype: _uses(choices) for dtype, choices in by_dtype.items()}
        for dtype, uses in rows.items():
            alike = len(rows) == 1 or len({tuple(x.items()) for x in rows.values()}) == 1
            found += [Entry(*product, use, "" if alike else dtype, config) for use, config in uses.items()]
    return sorted(set(found), key=_place)


def render(table: list[Entry], sources: Iterable[str]) -> str:
    """The C++ file."""
    named = ", ".join(sources) or "nothing: no results yet"
    rows = "".join(f"    {row(entry)},\n" for entry in table)
    return _HEAD.format(sources=named, count=len(table)) + rows + _FOOT


def row(entry: Entry) -> str:
    """One row in C++. ValueError for a config that cannot stand there."""
    name = _config_name.parse("f16_" + entry.config)
    majors, tile, cluster = name.majors, (name.tile_m, name.tile_n), (name.cluster_m, name.cluster_n)
    if name.arrangement == "swap":  # names are the caller's way round, KernelConfig is the kernel's
        majors, tile, cluster = majors[::-1], tile[::-1], cluster[::-1]
    numbers = map(str, (*tile, *cluster, name.stages))
    kernel = ["kAny16", *(MAJOR[x] for x in majors), *numbers, _ARRANGEMENT[name.arrangement]]
    use = "kInvariant" if entry.invariant else "kAny"
    sizes = f"{entry.m}, {entry.n}, {entry.k}, {_DTYPES[entry.dtype]}, {use}"
    first, second = f"{{{sizes}, {{{{{', '.join(kernel)}}},", f"{{{_schedule(name.tokens)}}}}}}}"
    return first + (" " if len(first + second) < _WIDTH else "\n        ") + second


def _schedule(tokens: list[str]) -> str:
    fields = {}
    for token in tokens:
        word, number, ranges = re.fullmatch(r"([a-z]+)(\d*)(?:x(\d+))?", token).groups()  # type: ignore[union-attr]
        if word == "tail":
            fields |= {"tail": number, "ranges": ranges}
        elif word in ("m", "n"):
            fields |= {"group": number} | ({"along_m": "false"} if word == "n" else {})
        elif word in _TOKEN:
            fields[_TOKEN[word]] = number
        else:  # K's direction would make bits depend on a row's position, L2 policies are not tried
            raise ValueError(f"schedule +{token}: no part of the shipped table")
    return ", ".join(f".{name} = {fields[name]}" for name in _FIELDS if name in fields)


def _require_plain(record: dict[str, Any]) -> None:
    wanted = {"gpu": GPU, "sm_count": SM_COUNT, "out_dtype": record["dtype"]}
    wanted |= {"batch_inner": 1, "batch_outer": 1}
    for name, value in wanted.items():
        if record[name] != value:
            size = f"{record['m']}x{record['n']}x{record['k']}"
            raise ValueError(f"{size}: {name} is {record[name]!r}; the table is for {value!r}")


def _choice(record: dict[str, Any]) -> str:
    """The winner without its dtype."""
    default_is_as_good = record["default_microseconds"] < MARGIN * record["microseconds"]
    name = record["default_config" if default_is_as_good else "config"]
    return str(name.partition("_")[2])


def _uses(choices: dict[bool, str]) -> dict[bool, str]:
    """One row for all problems, and one for batch-invariant ones only where theirs is another."""
    return {use: config for use, config in sorted(choices.items()) if not use or config != choices.get(False)}


def _place(entry: Entry) -> tuple[Any, ...]:
    return (*entry[:5], list(_DTYPES).index(entry.dtype))


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, metavar="FILE")
    options = parser.parse_args()
    files = options.files or shipped()
    try:
        table = entries(records_of(files))
        options.output.write_text(render(table, [file.name for file in files]))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{options.output}: {len(table)} entries")


def shipped() -> list[Path]:
    """The results that the committed table is made of."""
    return sorted((ROOT / "benchmarks/results").glob("*-h200-table-*.json"))


def records_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    """All of their records that name a kernel which is compiled, each with its file's header beside it."""
    kernels = set(_core.configs())
    found = []
    for file in files:
        data = load(file)
        found += [
            {**data["header"], **record}
            for record in data["records"]
            if {_kernel(record["config"]), _kernel(record["default_config"])} <= kernels
        ]
    return found + for_other_layouts(found)


def _kernel(config: str) -> str:
    return config.partition("+")[0]


def for_other_layouts(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of kk for layouts in which their products were not measured, if the kernel exists."""

    def product(record: dict[str, Any], majors: str) -> tuple[Any, ...]:
        return majors, *(record[name] for name in ("dtype", "m", "n", "k"))

    measured = {product(record, record["majors"]) for record in records}
    kernels = set(_core.configs())
    found = []
    for record in records:
        for majors in ("kn", "mk", "mn"):
            if record["majors"] != "kk" or product(record, majors) in measured:
                continue
            names = {
                name: record[name].replace("_kk_", f"_{majors}_") for name in ("config", "default_config")
            }
            if all(_kernel(name) in kernels for name in names.values()):
                found.append({**record, **names, "majors": majors})
    return found


if __name__ == "__main__":
    main()
