// A consumer: a warpgroup that only issues wgmma, then sends its part of the tile out. One wgmma group stays in flight.
#pragma once
#include "kernel/epilogue.h"
#include "kernel/layout.h"
#include "kernel/params.h"
#include "kernel/pipeline.h"

namespace hopgemm {

// acc = a @ b over all of K for one tile. The stage of step i is released when step i + 1 has been issued and i is done.
template <class Hw, int kStages>
HOPGEMM_DEVICE void main_loop(Hw& hw, typename Hw::Accumulator& acc, PipelineState<kStages>& state, int k_tiles,
                              uint32_t peers) {
  PipelineState<kStages> previous = state;
  for (int i = 0; i < k_tiles; ++i) {
    consumer_wait(hw, state);
    hw.mma(acc, state.stage, /*accumulate=*/i > 0);
    hw.mma_commit();
    if (i > 0) {
      hw.template mma_wait<1>(acc);
      consumer_release(hw, previous, peers);
    }
    previous = state;
    state.advance();
  }
  if constexpr (!is_cooperative(Hw::kKernelConfig)) hw.arrive(hw.turn(1 - hw.consumer()));  // pairs with the wait in consume()
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
  uint32_t turn_phase = consumer ^ 1;  // consumer 0 goes first: its first wait passes
  int owner = 0;                       // ping-pong: whose tile it is
  for (TileScheduler<kConfig> tiles(p.grid, hw.cluster(), hw.num_clusters(), hw.cta_rank()); tiles.valid(); tiles.next()) {
    const bool mine = is_cooperative(kConfig) || owner == consumer;
    owner ^= 1;
    if (!mine) {
      state.advance(p.k_tiles);
      continue;
    }
    if constexpr (!is_cooperative(kConfig)) {
      hw.wait(hw.turn(consumer), turn_phase);  // the tensor cores are the other one's until it has issued its last wgmma
      turn_phase ^= 1;
    }
    main_loop(hw, acc, state, p.k_tiles, peers);
    Tile t = tiles.tile();
    if constexpr (is_cooperative(kConfig)) t.m += consumer * consumer_m(kConfig);
    epilogue(hw, acc, t, p, staging);
  }
  hw.store_drain();  // a bulk store may still read shared memory: not after the CTA has gone
}

}  // namespace hopgemm
