"""Deals the rows of instances.def into .cu files, and writes the table that names them.

    python generate_instances.py instances.def OUTPUT_DIR SHARDS
        writes instances_<i>.cu and instances.cc into OUTPUT_DIR
    python generate_instances.py instances.def --widths
        prints the wgmma widths that the rows need

Kernels are dealt from the heaviest on, like cards, so that every file takes about as long to compile.
"""

import pathlib
import re
import sys

DTYPES = {"bf16": "kBF16", "f16": "kF16"}
MAJORS = {"k": "kK", "m": "kMN", "n": "kMN"}
SHORT = {"Cooperative": "coop", "Pingpong": "pingpong", "Swapped": "swap"}
ROW = re.compile(
    r"HOPGEMM_(TILE|SWAPPED)\(([a-z_]+), (\d+), (\d+), (\d+), (\d+), (\d+)(?:, k(Cooperative|Pingpong))?\)"
)

SHARD = """// Written by generate_instances.py.
#include "kernel/gemm_kernel.cuh"

namespace hopgemm::instances {{
{kernels}}}  // namespace hopgemm::instances
"""

KERNEL = """
__global__ void __launch_bounds__(kNumThreads, 1) \
{name}(const __grid_constant__ GemmParams<CUtensorMap> params) {{
  gemm_kernel<{config}>(params);
}}
const void* address_of_{name}() {{ return reinterpret_cast<const void*>(&{name}); }}
"""

TABLE = """// Written by generate_instances.py.
#include "config/instances.h"

namespace hopgemm {{
namespace instances {{
{declarations}}}  // namespace instances

const Instance kInstances[] = {{
{rows}}};
const int kNumInstances = {count};

}}  // namespace hopgemm
"""


def shapes(path):
    text = pathlib.Path(path).read_text()
    rows = [line for line in text.splitlines() if line.startswith("HOPGEMM_")]
    matches = [ROW.fullmatch(row.strip()) for row in rows]
    if not rows or None in matches:
        raise SystemExit(f"{path}: cannot read {rows[matches.index(None)] if rows else 'any row'!r}")
    return [(*map(int, m.groups()[2:7]), m[8] or "Swapped", m[2].split("_")) for m in matches]


def instances(path):
    """(name, C++ config, accumulators per thread) of every kernel, in the order of the table."""
    for tile_m, tile_n, cluster_m, cluster_n, stages, arrangement, layouts in shapes(path):
        tile, cluster = f"{tile_m}x{tile_n}x64", f"c{cluster_m}x{cluster_n}"
        swapped = arrangement == "Swapped"
        if swapped:
            tile, cluster = f"{tile_n}x{tile_m}x64", f"c{cluster_n}x{cluster_m}"
        for dtype, enumerator in DTYPES.items():
            for a, b in layouts:
                name = f"{dtype}_{a}{b}_{tile}_{cluster}_s{stages}_{SHORT[arrangement]}"
                first, second = (b, a) if swapped else (a, b)
                config = (
                    f"KernelConfig{{DType::{enumerator}, Major::{MAJORS[first]}, Major::{MAJORS[second]}, "
                    f"{tile_m}, {tile_n}, {cluster_m}, {cluster_n}, {stages}, Arrangement::k{arrangement}}}"
                )
                rows = tile_m if arrangement == "Pingpong" else tile_m // 2
                yield name, config, rows * tile_n


def main(path, output, shards=None):
    if output == "--widths":
        widths = {192 if n > 256 else n for _, n, *_ in shapes(path)} | {
            n - 192 for _, n, *_ in shapes(path) if n > 256
        }
        print(*sorted(widths))
        return
    table = list(instances(path))
    folder, count = pathlib.Path(output), int(shards)
    folder.mkdir(parents=True, exist_ok=True)
    heaviest_first = sorted(table, key=lambda row: (-row[2], row[0]))
    for i in range(count):
        kernels = "".join(
            KERNEL.format(name=name, config=config) for name, config, _ in heaviest_first[i::count]
        )
        write(folder / f"instances_{i}.cu", SHARD.format(kernels=kernels))
    declarations = "".join(f"const void* address_of_{name}();\n" for name, *_ in table)
    rows = "".join(
        f'    {{"{name}", {config}, &instances::address_of_{name}}},\n' for name, config, _ in table
    )
    write(folder / "instances.cc", TABLE.format(declarations=declarations, rows=rows, count=len(table)))


def write(path, text):
    """Leaves an unchanged file alone, so that nothing is compiled again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
