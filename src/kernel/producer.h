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

// Orders step `k` of K of a tile into the ring's next stage.
template <class Hw, int kStages>
HOPGEMM_DEVICE void load_step(Hw& hw, const GemmParams<typename Hw::TensorMap>& p, const Tile& t, int k,
                              PipelineState<kStages>& state) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  constexpr OperandTile kA = a_tile(kConfig), kB = b_tile(kConfig);
  const int rank = hw.cta_rank();
  producer_acquire(hw, state, tx_bytes(kConfig));
  load_operand<kA>(hw, p.a, state.stage, a_offset(kConfig, state.stage), cluster_n_index(kConfig, rank),
                   a_multicast_mask(kConfig, rank), t.m, k * kTileK, t.batch_inner * p.a_batch_inner,
                   t.batch_outer * p.a_batch_outer, p.a_policy);
  load_operand<kB>(hw, p.b, state.stage, b_offset(kConfig, state.stage), cluster_m_index(kConfig, rank),
                   b_multicast_mask(kConfig, rank), t.n, k * kTileK, t.batch_inner * p.b_batch_inner,
                   t.batch_outer * p.b_batch_outer, p.b_policy);
  state.advance();
}

template <class Hw, int kStages>
HOPGEMM_DEVICE void load_steps(Hw& hw, const GemmParams<typename Hw::TensorMap>& p, const Tile& t,
                               const KSteps& k, PipelineState<kStages>& state) {
  HOPGEMM_NO_UNROLL
  for (int step = k.first, left = k.count; left > 0; --left, step += k.step) load_step(hw, p, t, step, state);
}

// The tile that a CTA loads first, by the whole warp of the producer. Before the barriers are made, so that
// it costs no time: afterwards nothing would hide it.
template <class Hw>
HOPGEMM_DEVICE Tile first_tile(const Hw& hw, const GemmParams<typename Hw::TensorMap>& p) {
  return TileScheduler<Hw::kKernelConfig>(p.grid, hw.cluster(), hw.num_clusters(), hw.cta_rank()).tile();
}

// Where the next tile lies is worked out when the ring is full of this one, if K is so long: time that is
// free. Between two tiles the loads would come late by it.
template <class Hw>
HOPGEMM_DEVICE void produce(Hw& hw, const GemmParams<typename Hw::TensorMap>& p, const Tile& first) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  PipelineState<kConfig.num_stages> state;
  TileScheduler<kConfig> tiles(p.grid, hw.cluster(), hw.num_clusters(), hw.cta_rank());
  Tile next = first;
  hw.wait_for_launches();  // HAZARD: before it the operands may not be written yet
  if (p.leaves_room) hw.allow_next_launch();
  while (tiles.valid()) {
    const Tile t = next;
    const int fill = t.k.count < kConfig.num_stages ? t.k.count : kConfig.num_stages;
    load_steps(hw, p, t, {t.k.first, fill, t.k.step}, state);
    tiles.next();
    if (tiles.valid()) next = tiles.tile();
    load_steps(hw, p, t, {t.k.first + fill * t.k.step, t.k.count - fill, t.k.step}, state);
  }
  hw.allow_next_launch();  // it may set itself up while the last tiles are multiplied
  if constexpr (cluster_size(kConfig) > 1) drain_ring(hw, state);
}

}  // namespace hopgemm
