// Rung 3: a ring of stages with a barrier each. The copies of the next steps of K are on their way while this
// one is multiplied: prefetch, by the same threads. (The emulator runs every depth from this one source.)
#include "ladder/roles.h"

namespace hopgemm::ladder {

template <int kDepth> struct Rung03 {
  static constexpr KernelConfig config(DType t) { return one_consumer(t, 128, 128, kDepth); }
  static constexpr Schedule kSchedule{.group = 1};
  static constexpr bool kPersistent = false, kReallocate = false;
  // Depth 2 leaves room for a second CTA on the SM, depth 4 does not.
  static constexpr int kConsumers = 1, kProducer = 0, kCtasPerSm = kDepth == 2 ? 2 : 1, kStepN = 128;

  template <class Hw> static HOPGEMM_DEVICE void consume(Hw& hw, const Params<Hw>& p) {
    const Tile t = static_tiles(hw, p).tile();
    auto load = [&](int stage, int k) {
      if (k >= p.grid.k_tiles || !hw.is_leader()) return;
      hw.arrive_expect_tx(hw.full(stage), tx_bytes(Hw::kKernelConfig));
      load_stage(hw, p, t, stage, k);
    };
    for (int stage = 0; stage < kDepth; ++stage) load(stage, stage);
    typename Hw::Accumulator acc;
    PipelineState<kDepth> state;
    for (int k = 0; k < p.grid.k_tiles; ++k) {
      consumer_wait(hw, state);
      hw.mma(acc, state.stage, /*accumulate=*/k > 0);
      hw.mma_commit();
      hw.template mma_wait<0>(acc);
      hw.consumer_sync();  // HAZARD: as in rung 2
      load(state.stage, k + kDepth);
      state.advance();
    }
    store_serially(hw, acc, t, p);
  }
};

}  // namespace hopgemm::ladder

#ifdef __CUDACC__
#include "ladder/kernel.cuh"
namespace hopgemm::ladder {
extern const Rung kRung03a = make_rung<Rung03<2>>("3a", "ring of 2 stages, prefetch, 2 CTAs an SM");
extern const Rung kRung03b = make_rung<Rung03<4>>("3b", "ring of 4 stages, 1 CTA an SM");
}  // namespace hopgemm::ladder
#endif
