// A consumer: a warpgroup that only issues wgmma, then sends its part of the tile out. One wgmma group stays
// in flight.
#pragma once
#include "kernel/epilogue.h"
#include "kernel/exchange.h"
#include "kernel/layout.h"
#include "kernel/params.h"
#include "kernel/pipeline.h"

namespace hopgemm {

// One step of K: issue it, then release the stage of the step before, which is done by then.
template <class Hw, int kStages>
HOPGEMM_DEVICE void main_loop_step(Hw& hw, typename Hw::Accumulator& acc, PipelineState<kStages>& state,
                                   PipelineState<kStages>& previous, bool first, uint32_t peers) {
  consumer_wait(hw, state);
  hw.mma(acc, state.stage, /*accumulate=*/!first);
  hw.mma_commit();
  if (!first) {
    hw.template mma_wait<1>(acc);
    consumer_release(hw, previous, peers);
  }
  previous = state;
  state.advance();
}

// acc = a @ b over all of K for one tile. `meanwhile(i)` is called for i = 0 .. kMeanwhile - 1 after the i-th
// step has been issued (or K has ended): work for this warpgroup while the tensor cores are busy.
template <int kMeanwhile, class Hw, int kStages, class Meanwhile>
HOPGEMM_DEVICE void main_loop(Hw& hw, typename Hw::Accumulator& acc, PipelineState<kStages>& state,
                              int k_tiles, uint32_t peers, Meanwhile&& meanwhile) {
  PipelineState<kStages> previous = state;
  HOPGEMM_UNROLL
  for (int i = 0; i < kMeanwhile; ++i) {
    if (i < k_tiles) main_loop_step(hw, acc, state, previous, i == 0, peers);
    meanwhile(i);
  }
  for (int i = kMeanwhile; i < k_tiles; ++i) main_loop_step(hw, acc, state, previous, i == 0, peers);
  if constexpr (!is_cooperative(Hw::kKernelConfig))
    hw.arrive(hw.turn(1 - hw.consumer()));  // pairs with the wait in consume()
  hw.template mma_wait<0>(acc);
  consumer_release(hw, previous, peers);
}

template <class Hw> HOPGEMM_DEVICE void consume(Hw& hw, const GemmParams<typename Hw::TensorMap>& p) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  const int consumer = hw.consumer();
  const uint32_t peers = peer_mask(kConfig, hw.cta_rank());
  typename Hw::Accumulator acc;
  PipelineState<kConfig.num_stages> state;
  StagingState staging;
  RoundedTile<Hw> rounded;  // cooperative: the last tile's result, leaves under the next main loop
  uint32_t exchange_phase = 0;
  uint32_t turn_phase = consumer ^ 1;  // consumer 0 goes first: its first wait passes
  int owner = 0;  // ping-pong: whose tile it is
  hw.wait_for_launches();  // HAZARD: before it the last reader of d may not be done, nor c be written
  for (TileScheduler<kConfig> tiles(p.grid, hw.cluster(), hw.num_clusters(), hw.cta_rank()); tiles.valid();
       tiles.next()) {
    const bool mine = is_cooperative(kConfig) || owner == consumer;
    owner ^= 1;
    const int k_tiles = tiles.piece().k.count;
    if (!mine) {
      state.advance(k_tiles);
      continue;
    }
    if constexpr (is_cooperative(kConfig) && !is_swapped(kConfig)) {
      Tile t;
      main_loop<kPieces<kConfig, 64>>(hw, acc, state, k_tiles, peers, [&](int piece) {
        store_rounded(hw, rounded, piece, p, staging);
        if (piece < kPieces<kConfig, 64> - 1) return;
        t = tiles.output();  // not earlier: until now the last tile's result took the registers
        t.m += consumer * consumer_m(kConfig);
      });
      epilogue(hw, acc, t, p, staging, rounded);
      continue;
    }
    Tile t = tiles.output();
    if constexpr (!is_cooperative(kConfig)) {
      // The tensor cores are the other one's until it has issued its last wgmma.
      hw.wait(hw.turn(consumer), turn_phase);
      turn_phase ^= 1;
    }
    main_loop<0>(hw, acc, state, k_tiles, peers, [](int) {});
    if constexpr (is_swapped(kConfig)) {
      t.m += consumer * consumer_m(kConfig);
      swapped_epilogue(hw, acc, t, p, exchange_phase);
      exchange_phase ^= 1;
    } else {
      epilogue(hw, acc, t, p, staging, rounded);
    }
  }
  if constexpr (is_swapped(kConfig)) {
    if (p.grid.split > 1) hw.wait_peers(hw.sums_empty(), exchange_phase ^ 1);  // HAZARD: as in drain_ring()
  } else {
    HOPGEMM_UNROLL
    for (int piece = 0; piece < kPieces<kConfig, 64>; ++piece) store_rounded(hw, rounded, piece, p, staging);
    hw.store_drain();  // a bulk store may still read shared memory: not after the CTA has gone
  }
}

}  // namespace hopgemm
