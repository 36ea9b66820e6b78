"""Writes wgmma.gen.cuh: one wrapper of `wgmma.mma_async` per instruction width that a config uses.

An asm statement must name each of its up to 128 accumulator registers, which no C++ template can spell.

    python generate_wgmma.py OUTPUT N [N ...]
"""

import sys

HEAD = """// Written by generate_wgmma.py. PTX ISA, "wgmma.mma_async": \
D (fp32, registers) += A (shared) x B (shared), m64nNk16.
#pragma once
#include <cstdint>

#include "config/config.h"

namespace hopgemm::ptx {

// kTransA, kTransB: 1 where the operand is MN-major. `accumulate` false overwrites D. \
`d` is the first of kN / 2 registers.
template <int kN, DType kType, int kTransA, int kTransB> struct Wgmma;
"""

WRAPPER = """
template <DType kType, int kTransA, int kTransB> struct Wgmma<{n}, kType, kTransA, kTransB> {{
  __device__ __forceinline__ static void mma(float* d, uint64_t a, uint64_t b, bool accumulate) {{
    if constexpr (kType == DType::kBF16) {{
      {bf16}
    }} else {{
      {f16}
    }}
  }}
}};
"""


def statement(n: int, dtype: str) -> str:
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return (
        f'asm volatile("{{.reg .pred p; setp.ne.b32 p, %{count + 2}, 0; '
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype} {{{registers}}}, "
        f'%{count}, %{count + 1}, p, 1, 1, %{count + 3}, %{count + 4};}}"\n'
        f"                   : {operands}\n"
        '                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), '
        '"n"(kTransA), "n"(kTransB));'
    )


def main(output: str, *widths: str) -> None:
    text = HEAD
    for n in sorted({int(w) for w in widths}):
        text += WRAPPER.format(n=n, bf16=statement(n, "bf16"), f16=statement(n, "f16"))
    text += "\n}  // namespace hopgemm::ptx\n"
    with open(output, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
