// From accumulators to memory: scale in fp32, round once, stage 64 rows x 128 bytes in swizzled shared memory, and let TMA
// carry it away while the next piece is staged. Rows that TMA cannot address leave the staging buffer by plain stores.
#pragma once
#include "kernel/layout.h"
#include "kernel/params.h"

namespace hopgemm {

struct StagingState {
  int slot = 0;
  HOPGEMM_DEVICE void advance() { slot = slot + 1 == kStagingSlots ? 0 : slot + 1; }
};

// kColumns x sizeof(element) = 128 bytes: 64 for 16-bit results, 32 for fp32.
template <int kColumns, class Hw>
HOPGEMM_DEVICE void store_tile(Hw& hw, typename Hw::Accumulator& acc, const Tile& t,
                               const GemmParams<typename Hw::TensorMap>& p, StagingState& staging) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  HOPGEMM_UNROLL
  for (int row = 0; row < mma_rows(kConfig); ++row) {
    HOPGEMM_UNROLL
    for (int piece = 0; piece < kConfig.tile_n / kColumns; ++piece) {
      const int m = t.m + row * kMmaM, n = t.n + piece * kColumns;
      hw.template store_wait_read<kStagingSlots - 1>();  // the slot's last reader is done; all threads of the consumer agree
      hw.template stage<kColumns>(acc, row, piece, staging.slot, p.epilogue.d.dtype);
      if (p.epilogue.store == Store::kTma) {
        hw.fence_proxy_async();  // HAZARD: without it TMA may read what was there before
        hw.consumer_sync();
        hw.store(p.d, staging.slot, n, m, t.batch_inner, t.batch_outer, p.d_policy);
      } else {
        hw.template store_direct<kColumns>(p.epilogue, staging.slot, m, n, t);
      }
      staging.advance();
    }
  }
}

template <class Hw>
HOPGEMM_DEVICE void epilogue(Hw& hw, typename Hw::Accumulator& acc, const Tile& t,
                             const GemmParams<typename Hw::TensorMap>& p, StagingState& staging) {
  if (p.epilogue.scaled) hw.scale(acc, p.epilogue, t);
  if (p.epilogue.d.dtype == DType::kF32) {
    store_tile<32>(hw, acc, t, p, staging);
  } else {
    store_tile<64>(hw, acc, t, p, staging);
  }
}

}  // namespace hopgemm
