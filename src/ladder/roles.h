// What several rungs share of their roles. Templates over Hw, as in kernel/: the emulator runs them too.
#pragma once
#include "kernel/consumer.h"
#include "kernel/producer.h"

namespace hopgemm::ladder {

template <class Hw> using Params = GemmParams<typename Hw::TensorMap>;

constexpr KernelConfig kk_config(DType dtype, int tile_m, int tile_n, int cluster_m, int num_stages,
                                 Arrangement arrangement) {
  return {dtype, Major::kK, Major::kK, tile_m, tile_n, cluster_m, 1, num_stages, arrangement};
}
// One warpgroup has the whole tile.
constexpr KernelConfig one_consumer(DType dtype, int tile_m, int tile_n, int num_stages) {
  return kk_config(dtype, tile_m, tile_n, 1, num_stages, Arrangement::kPingpong);
}
// Two warpgroups, half of the tile's rows each.
constexpr KernelConfig two_consumers(DType dtype, int tile_m, int tile_n, int cluster_m, int num_stages) {
  return kk_config(dtype, tile_m, tile_n, cluster_m, num_stages, Arrangement::kCooperative);
}

template <class Hw> using StaticTiles = TileScheduler<Hw::kKernelConfig>;
template <class Hw> HOPGEMM_DEVICE StaticTiles<Hw> static_tiles(Hw& hw, const Params<Hw>& p) {
  return StaticTiles<Hw>(p.grid, hw.cluster(), hw.num_clusters(), hw.cta_rank());
}

// A TMA box is at most 256 rows: a B that is wider (rung 8) comes in halves, by tensor maps like those of two
// CTAs that share it.
constexpr bool comes_in_halves(const KernelConfig& c) { return c.tile_n / c.cluster_m > kMaxTmaBox; }
constexpr KernelConfig tensor_map_config(KernelConfig c) {
  if (comes_in_halves(c)) c.cluster_m = 2;
  return c;
}

// Orders the copies of K step `k` of a tile into a stage. One thread; its bytes have been announced.
template <class Hw>
HOPGEMM_DEVICE void load_stage(Hw& hw, const Params<Hw>& p, const Tile& t, int stage, int k) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  const int rank = hw.cta_rank();
  load_operand<a_tile(kConfig)>(hw, p.a, stage, a_offset(kConfig, stage), cluster_n_index(kConfig, rank),
                                a_multicast_mask(kConfig, rank), t.m, k * kTileK, 0, 0, p.a_policy);
  if constexpr (comes_in_halves(kConfig)) {
    constexpr int kRows = kConfig.tile_n / 2;
    for (int row = 0; row < kConfig.tile_n; row += kRows)
      hw.template load<false>(p.b, b_offset(kConfig, stage) + row * kSwizzleBytes, hw.full(stage), k * kTileK,
                              t.n + row, 0, 0, 1u, p.b_policy);
  } else {
    load_operand<b_tile(kConfig)>(hw, p.b, stage, b_offset(kConfig, stage), cluster_m_index(kConfig, rank),
                                  b_multicast_mask(kConfig, rank), t.n, k * kTileK, 0, 0, p.b_policy);
  }
}

// The producer of rungs 5 and above: as far ahead as the ring is deep, from tile to tile.
template <class Hw, class Tiles> HOPGEMM_DEVICE void produce_tiles(Hw& hw, const Params<Hw>& p, Tiles tiles) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  PipelineState<kConfig.num_stages> state;
  for (; tiles.valid(); tiles.next()) {
    const Tile t = tiles.tile();
    for (int k = 0; k < p.grid.k_tiles; ++k) {
      producer_acquire(hw, state, tx_bytes(kConfig));
      load_stage(hw, p, t, state.stage, k);
      state.advance();
    }
  }
  if constexpr (cluster_size(kConfig) > 1) drain_ring(hw, state);
}

// Where this consumer's part of the tile begins.
template <class Hw> HOPGEMM_DEVICE Tile own_part(Hw& hw, Tile t) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  if constexpr (is_cooperative(kConfig)) t.m += hw.consumer() * consumer_m(kConfig);
  return t;
}

// Sends piece `i` of a rounded tile out through a staging slot: 64 rows x 128 bytes. What lies outside the
// result is clipped.
template <class Hw> HOPGEMM_DEVICE void send_piece(Hw& hw, const typename Hw::Rounded& rounded, int i,
                                                   const Tile& t, const Params<Hw>& p, int slot) {
  constexpr int kColumns = kSwizzleBytes / 2, kAcross = Hw::kKernelConfig.tile_n / kColumns;
  const int row = i / kAcross, column = i % kAcross * kColumns;
  hw.template stage<kColumns>(rounded, row, column, slot);
  hw.fence_proxy_async();  // HAZARD: without it TMA may read what was there before
  hw.consumer_sync();
  hw.store(p.d, slot, t.n + column, t.m + row * kMmaM, 0, 0, p.d_policy);
}

// The epilogue up to rung 9: one slot; each piece is waited for, and the last until it is in memory.
template <class Hw> HOPGEMM_DEVICE void store_serially(Hw& hw, const typename Hw::Accumulator& acc,
                                                       const Tile& t, const Params<Hw>& p) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  typename Hw::Rounded rounded;
  hw.round(acc, rounded);
  HOPGEMM_UNROLL
  for (int i = 0; i < kPieces<kConfig, 64>; ++i) {
    send_piece(hw, rounded, i, t, p, 0);
    hw.template store_wait_read<0>();
  }
  hw.store_drain();
}

// The epilogue from rung 10 on. Two slots: one is filled while TMA reads the other. `staging`: which is next,
// from tile to tile.
template <class Hw> HOPGEMM_DEVICE void store_overlapped(Hw& hw, const typename Hw::Accumulator& acc,
                                                         const Tile& t, const Params<Hw>& p,
                                                         StagingState& staging) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  typename Hw::Rounded rounded;
  hw.round(acc, rounded);
  HOPGEMM_UNROLL
  for (int i = 0; i < kPieces<kConfig, 64>; ++i) {
    hw.template store_wait_read<kStagingSlots - 1>();  // pairs with the store that last read this slot
    send_piece(hw, rounded, i, t, p, staging.slot);
    staging.advance();
  }
}

// The consumer of rungs 8 and above: the product's main loop, with an epilogue `store(acc, tile)` after it.
template <class Hw, class Tiles, class Store>
HOPGEMM_DEVICE void consume_tiles(Hw& hw, const Params<Hw>& p, Tiles tiles, Store&& store) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  typename Hw::Accumulator acc;
  PipelineState<kConfig.num_stages> state;
  const uint32_t peers = peer_mask(kConfig, hw.cta_rank());
  for (; tiles.valid(); tiles.next()) {
    const Tile t = own_part(hw, tiles.tile());
    main_loop<0>(hw, acc, state, p.grid.k_tiles, peers, [](int) {});
    store(acc, t);
  }
  hw.store_drain();
}

}  // namespace hopgemm::ladder
