// Rung 4: a fixed pool of CTAs, as many as the device holds, walks over all tiles in an order that keeps
// operands in L2: strips 8 tiles wide. Barriers are made once; stages and phases carry over from tile to
// tile, and the next tile's first copies are on their way while this one's result is stored.
#include "ladder/roles.h"

namespace hopgemm::ladder {

struct Rung04 {
  static constexpr KernelConfig config(DType t) { return one_consumer(t, 128, 128, 2); }
  static constexpr Schedule kSchedule{.group = 8};
  static constexpr bool kPersistent = true, kReallocate = false;
  static constexpr int kConsumers = 1, kProducer = 0, kCtasPerSm = 2, kStepN = 128;

  template <class Hw> static HOPGEMM_DEVICE void consume(Hw& hw, const Params<Hw>& p) {
    constexpr int kDepth = Hw::kKernelConfig.num_stages;
    auto tiles = static_tiles(hw, p);
    if (!tiles.valid()) return;
    auto load = [&](const Tile& t, int stage, int k) {
      if (k >= p.grid.k_tiles || !hw.is_leader()) return;
      hw.arrive_expect_tx(hw.full(stage), tx_bytes(Hw::kKernelConfig));
      load_stage(hw, p, t, stage, k);
    };
    typename Hw::Accumulator acc;
    PipelineState<kDepth> state;
    Tile t = tiles.tile();
    for (int k = 0; k < kDepth; ++k) load(t, k, k);
    for (;;) {
      for (int k = 0; k < p.grid.k_tiles; ++k) {
        consumer_wait(hw, state);
        hw.mma(acc, state.stage, /*accumulate=*/k > 0);
        hw.mma_commit();
        hw.template mma_wait<0>(acc);
        hw.consumer_sync();  // HAZARD: as in rung 2
        load(t, state.stage, k + kDepth);
        state.advance();
      }
      const Tile done = t;
      tiles.next();
      if (!tiles.valid()) {
        store_serially(hw, acc, done, p);
        return;
      }
      t = tiles.tile();
      for (int k = 0; k < kDepth; ++k) load(t, (state.stage + k) % kDepth, k);
      store_serially(hw, acc, done, p);
    }
  }
};

}  // namespace hopgemm::ladder

#ifdef __CUDACC__
#include "ladder/kernel.cuh"
namespace hopgemm::ladder {
extern const Rung kRung04 = make_rung<Rung04>("4", "persistent grid, grouped tile order");
}
#endif
