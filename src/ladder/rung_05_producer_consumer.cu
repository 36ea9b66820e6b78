// Rung 5: the copies get a warp of their own. The producer waits for `empty` and orders copies, the consumer
// waits for `full` and multiplies; neither waits for the other's instructions, only for its data.
#include "ladder/roles.h"

namespace hopgemm::ladder {

struct Rung05 {
  static constexpr KernelConfig config(DType t) { return one_consumer(t, 128, 128, 2); }
  static constexpr Schedule kSchedule{.group = 8};
  static constexpr bool kPersistent = true, kReallocate = false;
  static constexpr int kConsumers = 1, kProducer = kWarp, kCtasPerSm = 2, kStepN = 128;

  template <class Hw> static HOPGEMM_DEVICE void produce(Hw& hw, const Params<Hw>& p) {
    produce_tiles(hw, p, static_tiles(hw, p));
  }
  template <class Hw> static HOPGEMM_DEVICE void consume(Hw& hw, const Params<Hw>& p) {
    constexpr KernelConfig kConfig = Hw::kKernelConfig;
    typename Hw::Accumulator acc;
    PipelineState<kConfig.num_stages> state;
    const uint32_t peers = peer_mask(kConfig, hw.cta_rank());
    for (auto tiles = static_tiles(hw, p); tiles.valid(); tiles.next()) {
      for (int k = 0; k < p.grid.k_tiles; ++k) {
        consumer_wait(hw, state);
        hw.mma(acc, state.stage, /*accumulate=*/k > 0);
        hw.mma_commit();
        hw.template mma_wait<0>(acc);
        consumer_release(hw, state, peers);
        state.advance();
      }
      store_serially(hw, acc, own_part(hw, tiles.tile()), p);
    }
  }
};

}  // namespace hopgemm::ladder

#ifdef __CUDACC__
#include "ladder/kernel.cuh"
namespace hopgemm::ladder {
extern const Rung kRung05 = make_rung<Rung05>("5", "producer warp and consumer warpgroup");
}
#endif
