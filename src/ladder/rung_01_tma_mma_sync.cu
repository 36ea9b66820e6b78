// Rung 1: TMA brings the tiles, an mbarrier counts their bytes, and mma.sync multiplies on the tensor cores
// as it did on Ampere: operands go from shared memory through registers (ldmatrix). 128 threads, a tile of
// 128x128, 64x64 a warp. One stage: load, wait, multiply, and again.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "hw/ptx/mbarrier.cuh"
#include "hw/ptx/tma.cuh"
#include "ladder/kernel.cuh"

namespace hopgemm::ladder {
namespace {

constexpr KernelConfig kConfig = one_consumer(DType::kBF16, 128, 128, 1);
constexpr int kWarpTile = 64, kMmaTileM = 16, kMmaTileN = 8;  // mma.sync is m16n8k16

// Four 8x8 matrices of 16-bit elements; each lane gives the address of one row. PTX ISA, "ldmatrix".
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// PTX ISA, "mma": D (fp32) += A (16x16, row) x B (16x8, column).
template <DType kType> __device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4],
                                                                    uint32_t b0, uint32_t b1) {
  if constexpr (kType == DType::kBF16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <DType kType> __device__ __forceinline__ uint32_t round_pair(float low, float high) {
  if constexpr (kType == DType::kBF16) {
    const __nv_bfloat162 r = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&r);
  } else {
    const __half2 r = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&r);
  }
}

using Sums = float[kWarpTile / kMmaTileM][kWarpTile / kMmaTileN][4];

// sums += A (64 rows from `row`) x B (64 columns from `col`) over one stage.
template <DType kType>
__device__ __forceinline__ void multiply(Sums& sums, uint32_t a, uint32_t b, int row, int col, int lane) {
#pragma unroll
  for (int k = 0; k < kTileK; k += kMmaK) {
    uint32_t a_regs[kWarpTile / kMmaTileM][4];
    // Matrices: rows 0-7 and 8-15 of the first eight K, then of the second.
#pragma unroll
    for (int i = 0; i < kWarpTile / kMmaTileM; ++i)
      ldmatrix_x4(a_regs[i], a + swizzle128(row + i * kMmaTileM + lane % 16, (k + lane / 16 * 8) * 2));
#pragma unroll
    for (int j = 0; j < kWarpTile / kMmaTileN; j += 2) {
      // Both halves of K for columns 0-7, then for 8-15. B lies with K contiguous: "column" without a
      // transpose.
      uint32_t b_regs[4];
      ldmatrix_x4(b_regs,
                  b + swizzle128(col + j * kMmaTileN + lane / 16 * 8 + lane % 8, (k + lane / 8 % 2 * 8) * 2));
#pragma unroll
      for (int i = 0; i < kWarpTile / kMmaTileM; ++i) {
        mma_m16n8k16<kType>(sums[i][j], a_regs[i], b_regs[0], b_regs[1]);
        mma_m16n8k16<kType>(sums[i][j + 1], a_regs[i], b_regs[2], b_regs[3]);
      }
    }
  }
}

template <DType kType> __global__ void __launch_bounds__(kWarpgroup, 2)
    tma_mma_sync(const __grid_constant__ GemmParams<CUtensorMap> p) {
  const uint32_t smem = smem_base(), full = smem + barrier_offset(kConfig, full_index(kConfig, 0));
  const uint32_t a = smem + a_offset(kConfig, 0), b = smem + b_offset(kConfig, 0);
  const Block block = block_at(p.grid, blockIdx.x);
  const int m = block.m * kConfig.tile_m, n = block.n * kConfig.tile_n;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, 1);  // one arrival, and the bytes that it announces
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int row = warp / 2 * kWarpTile, col = warp % 2 * kWarpTile;
  Sums sums = {};
  for (int k = 0; k < p.grid.k_tiles; ++k) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect_tx(full, tx_bytes(kConfig));
      ptx::tma_load(a, &p.a, full, k * kTileK, m, 0, 0, p.a_policy);
      ptx::tma_load(b, &p.b, full, k * kTileK, n, 0, 0, p.b_policy);
    }
    ptx::mbarrier_wait_parity(full, k & 1);
    multiply<kType>(sums, a, b, row, col, lane);
    __syncthreads();  // HAZARD: the next copy overwrites what all warps read
  }
  // Straight to memory from registers: two elements at a time.
  auto* const d = static_cast<uint16_t*>(const_cast<void*>(p.epilogue.d.data));
#pragma unroll
  for (int i = 0; i < kWarpTile / kMmaTileM; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t at = m + row + i * kMmaTileM + half * 8 + lane / 4;
      uint16_t* const to = d + at * p.epilogue.d.row_stride + n + col + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kWarpTile / kMmaTileN; ++j)
        *reinterpret_cast<uint32_t*>(to + j * kMmaTileN) =
            round_pair<kType>(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
    }
  }
}

}  // namespace

extern const Rung kRung01{"1",
                          "TMA and mbarrier, operands through registers to mma.sync",
                          kConfig.tile_m,
                          kConfig.tile_n,
                          kTileK,
                          true,
                          true,
                          &launch_tma,
                          {reinterpret_cast<const void*>(&tma_mma_sync<DType::kF16>),
                           reinterpret_cast<const void*>(&tma_mma_sync<DType::kBF16>)},
                          kConfig,
                          Schedule{.group = 1},
                          kWarpgroup,
                          false};

}  // namespace hopgemm::ladder
