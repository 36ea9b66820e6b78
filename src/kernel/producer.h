// The producer: one thread that only orders copies. It runs ahead of the consumers by the depth of the ring,
// across tiles.
#pragma once
#include "kernel/layout.h"
#include "kernel/params.h"
#include "kernel/pipeline.h"

namespace hopgemm {

// One operand's share of a stage. `slice`: which part this CTA loads for all `mask`ed CTAs of its cluster.
template <OperandTile kTile, class Hw, class TensorMap>
HOPGEMM_DEVICE void load_operand(Hw& hw, const TensorMap& map, int stage, int stage_offset, int slice,
                                 uint32_t mask, int mn, int k, int batch_inner, int batch_outer,
                                 CachePolicy policy) {
  HOPGEMM_UNROLL
  for (int i = 0; i < num_boxes(kTile); ++i) {
    const Box box = box_at(kTile, slice, i);
    const int inner = (kTile.major == Major::kK ? k : mn) + box.inner;
    const int outer = (kTile.major == Major::kK ? mn : k) + box.outer;
    hw.template load<(kTile.sharers > 1)>(map, stage_offset + box.offset_bytes, hw.full(stage), inner, outer,
                                          batch_inner, batch_outer, mask, policy);
  }
}

template <class Hw> HOPGEMM_DEVICE void produce(Hw& hw, const GemmParams<typename Hw::TensorMap>& p) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  constexpr OperandTile kA = a_tile(kConfig), kB = b_tile(kConfig);
  const int rank = hw.cta_rank();
  const int a_slice = cluster_n_index(kConfig, rank), b_slice = cluster_m_index(kConfig, rank);
  const uint32_t a_mask = a_multicast_mask(kConfig, rank), b_mask = b_multicast_mask(kConfig, rank);
  const KSteps own = k_steps(p.k_tiles, p.split, split_index(kConfig, rank));
  PipelineState<kConfig.num_stages> state;
  for (TileScheduler<kConfig> tiles(p.grid, hw.cluster(), hw.num_clusters(), rank); tiles.valid();
       tiles.next()) {
    const Tile t = tiles.tile();
    // Asked for again at every step: what comes from the parameters needs no register, of which there are 24.
    const auto steps = [&] { return is_swapped(kConfig) ? own : KSteps{0, p.k_tiles, 1}; };
    for (int i = 0; i < steps().count; ++i) {
      const int position = t.k_reversed ? steps().count - 1 - i : i;
      const int k = (steps().first + position * steps().step) * kTileK;
      producer_acquire(hw, state, tx_bytes(kConfig));
      load_operand<kA>(hw, p.a, state.stage, a_offset(kConfig, state.stage), a_slice, a_mask, t.m, k,
                       t.batch_inner * p.a_batch_inner, t.batch_outer * p.a_batch_outer, p.a_policy);
      load_operand<kB>(hw, p.b, state.stage, b_offset(kConfig, state.stage), b_slice, b_mask, t.n, k,
                       t.batch_inner * p.b_batch_inner, t.batch_outer * p.b_batch_outer, p.b_policy);
      state.advance();
    }
  }
}

}  // namespace hopgemm
