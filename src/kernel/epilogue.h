// From accumulators to memory: scale in fp32, round once, stage 64 rows x 128 bytes in swizzled shared
// memory, and let TMA carry it away while the next piece is staged. What TMA cannot write leaves the staging
// buffer by plain stores.
//
// The sums of a part of a tile leave as they are, to their place in the matrix of sums.
//
// Cooperative consumers share a tile, so that no other math runs under their epilogue: they keep a 16-bit
// result in registers, half as many as its sums took, and stage it between the steps of the next tile's main
// loop.
#pragma once
#include "kernel/layout.h"
#include "kernel/params.h"

namespace hopgemm {

struct StagingState {
  int slot = 0;
  HOPGEMM_DEVICE void advance() { slot = slot + 1 == kStagingSlots ? 0 : slot + 1; }
};

// A piece is 64 rows of 128 bytes: kColumns is 64 for 16-bit results, 32 for fp32. Where the last one across
// does not fit the tile's width, it begins earlier, and writes some columns once more: the same values.
template <KernelConfig kConfig, int kColumns> inline constexpr int kPiecesAcross =
    ceil_div(kConfig.tile_n, kColumns);
template <KernelConfig kConfig, int kColumns> inline constexpr int kPieces =
    mma_rows(kConfig) * kPiecesAcross<kConfig, kColumns>;
template <KernelConfig kConfig, int kColumns> HOPGEMM_HOST_DEVICE constexpr int column_of_piece(int index) {
  const int column = index % kPiecesAcross<kConfig, kColumns> * kColumns, last = kConfig.tile_n - kColumns;
  return column < last ? column : last;
}

// A 16-bit result on its way out; `waiting` false: none.
template <class Hw> struct RoundedTile {
  typename Hw::Rounded values;
  Tile tile;
  bool waiting = false;
};

template <int kColumns, class Hw, class Values>
HOPGEMM_DEVICE void store_piece(Hw& hw, const Values& values, int index, const Tile& t,
                                const GemmParams<typename Hw::TensorMap>& p, StagingState& staging) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  const int row = index / kPiecesAcross<kConfig, kColumns>,
            column = column_of_piece<kConfig, kColumns>(index);
  const int m = t.m + row * kMmaM, n = t.n + column;
  const auto& map = kColumns == 32 && t.is_part ? p.sums : p.d;
  hw.template store_wait_read<kStagingSlots -
                              1>();  // the slot's last reader is done; all threads of the consumer agree
  hw.template stage<kColumns>(values, row, column, staging.slot);
  if (n + kColumns <= p.epilogue.tma_columns || (kColumns == 32 && t.is_part)) {
    hw.fence_proxy_async();  // HAZARD: without it TMA may read what was there before
    hw.consumer_sync();
    hw.store(map, staging.slot, n, m, t.batch_inner, t.batch_outer, p.d_policy);
  } else {
    hw.template store_direct<kColumns>(p.epilogue, staging.slot, m, n, t);
  }
  staging.advance();
}

template <class Hw> HOPGEMM_DEVICE void store_rounded(Hw& hw, RoundedTile<Hw>& rounded, int piece,
                                                      const GemmParams<typename Hw::TensorMap>& p,
                                                      StagingState& staging) {
  if (!rounded.waiting) return;
  store_piece<64>(hw, rounded.values, piece, rounded.tile, p, staging);
  if (piece == kPieces<Hw::kKernelConfig, 64> - 1) rounded.waiting = false;
}

template <class Hw> HOPGEMM_DEVICE void epilogue(Hw& hw, typename Hw::Accumulator& acc, const Tile& t,
                                                 const GemmParams<typename Hw::TensorMap>& p,
                                                 StagingState& staging, RoundedTile<Hw>& rounded) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  if (p.epilogue.scaled && !t.is_part) hw.scale(acc, p.epilogue, t);
  if (p.epilogue.d.dtype == DType::kF32 || t.is_part) {
    HOPGEMM_UNROLL
    for (int i = 0; i < kPieces<kConfig, 32>; ++i) store_piece<32>(hw, acc, i, t, p, staging);
  } else {
    hw.round(acc, rounded.values);
    rounded.tile = t;
    rounded.waiting = true;
    if constexpr (!is_cooperative(kConfig)) {
      HOPGEMM_UNROLL
      for (int i = 0; i < kPieces<kConfig, 64>; ++i) store_rounded(hw, rounded, i, p, staging);
    }
  }
}

}  // namespace hopgemm
