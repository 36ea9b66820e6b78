// EmulatedHw: the contract of hw/hw.h on the emulated machine, and the launch of a kernel on it.
#pragma once
#include "hw/emulated/role.h"
#include "hw/hw.h"
#include "kernel/consumer.h"
#include "kernel/cta.h"
#include "kernel/producer.h"

namespace hopgemm {

template <KernelConfig kConfig> class EmulatedHw : public emulated::Role {
 public:
  static constexpr KernelConfig kKernelConfig = kConfig;
  using TensorMap = emulated::TensorMap;
  struct Accumulator {
    float v[consumer_m(kConfig)][kConfig.tile_n];
  };
  struct Rounded {
    uint16_t v[consumer_m(kConfig)][kConfig.tile_n];
  };
  using Role::Role;

  template <bool kMulticast> void load(const TensorMap& map, int offset, uint32_t barrier, int c0, int c1,
                                       int c2, int c3, uint32_t mask, CachePolicy) {
    load_box(map, offset, barrier, {c0, c1, c2, c3}, kMulticast ? mask : 1u << cta_rank());
  }
  void mma(Accumulator& acc, int stage, bool accumulate) { mma_tile(&acc.v[0][0], stage, accumulate); }
  template <int kPending> void mma_wait(Accumulator&) { wait_groups(kPending); }
  void scale(Accumulator& acc, const EpilogueParams& e, const Tile& t) { scale_tile(&acc.v[0][0], e, t); }
  void round(const Accumulator& acc, Rounded& rounded) { round_tile(&acc.v[0][0], &rounded.v[0][0]); }
  template <int kColumns> void stage(const Rounded& rounded, int row, int column, int slot) {
    stage_piece(&rounded.v[row * kMmaM][column], sizeof rounded.v[0], slot);
  }
  template <int kColumns> void stage(const Accumulator& acc, int row, int column, int slot) {
    require_accumulator();
    stage_piece(&acc.v[row * kMmaM][column], sizeof acc.v[0], slot);
  }
  template <int kColumns> void store_direct(const EpilogueParams& e, int slot, int m, int n, const Tile& t) {
    store_piece(e, slot, kColumns, m, n, t);
  }
  template <int kPending> void store_wait_read() { wait_stores_read(kPending); }
  void send_sums(const Accumulator& acc, int split) { send_tile(&acc.v[0][0], split); }
  void add_sums(Accumulator& acc, int split) { add_tile(&acc.v[0][0], split); }
  void store_sums(const Accumulator& acc, const EpilogueParams& e, const Tile& t, int split) {
    store_tile(&acc.v[0][0], e, t, split);
  }
};

// A fiber for each role of each CTA: comes in, runs body(hw), leaves. `Hw` is EmulatedHw, or wraps it.
template <class Hw, class Body> emulated::Result emulate_roles(const emulated::Launch& launch, Body body) {
  constexpr size_t kStackBytes = 64 * 1024;
  emulated::Machine machine(launch);
  for (int cta = 0; cta < launch.num_ctas; ++cta) {
    for (int consumer = -1; consumer < kNumConsumers; ++consumer) {
      auto role = std::make_unique<Hw>(machine, cta, consumer);
      Hw& hw = *role;
      machine.add(std::move(role),
                  kStackBytes + sizeof(typename Hw::Accumulator) + sizeof(typename Hw::Rounded),
                  [&hw, &launch, body] {
                    enter(hw, launch.params.grid.split);
                    body(hw);
                  });
    }
  }
  return machine.run();
}

// What gemm_kernel does.
template <class Hw> emulated::Result emulate(const emulated::Launch& launch) {
  static_assert(is_valid(Hw::kKernelConfig));
  static_assert(Hardware<Hw>);
  return emulate_roles<Hw>(launch, [&launch](Hw& hw) {
    if (hw.consumer() >= 0) consume(hw, launch.params);
    else produce(hw, launch.params, first_tile(hw, launch.params));
  });
}

}  // namespace hopgemm
