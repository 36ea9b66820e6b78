// Rung 7: one wgmma group is always in flight. A consumer issues step k and only then waits for step k - 1
// and releases its stage: the tensor cores never wait for an instruction to be issued.
#include "ladder/roles.h"

namespace hopgemm::ladder {

struct Rung07 {
  static constexpr KernelConfig config(DType t) { return two_consumers(t, 128, 256, 1, 4); }
  static constexpr Schedule kSchedule{.group = 8};
  static constexpr bool kPersistent = true, kReallocate = false;
  static constexpr int kConsumers = 2, kProducer = 32, kCtasPerSm = 1, kStepN = 256;

  template <class Hw> static HOPGEMM_DEVICE void produce(Hw& hw, const Params<Hw>& p) {
    produce_tiles(hw, p, static_tiles(hw, p));
  }
  // The inner loop is kernel/consumer.h's main_loop, which the rungs above this one call.
  template <class Hw> static HOPGEMM_DEVICE void consume(Hw& hw, const Params<Hw>& p) {
    constexpr KernelConfig kConfig = Hw::kKernelConfig;
    typename Hw::Accumulator acc;
    PipelineState<kConfig.num_stages> state;
    const uint32_t peers = peer_mask(kConfig, hw.cta_rank());
    for (auto tiles = static_tiles(hw, p); tiles.valid(); tiles.next()) {
      auto previous = state;
      for (int k = 0; k < p.grid.k_tiles; ++k) {
        consumer_wait(hw, state);
        hw.mma(acc, state.stage, /*accumulate=*/k > 0);
        hw.mma_commit();
        if (k > 0) {
          hw.template mma_wait<1>(acc);  // all but the group just issued
          consumer_release(hw, previous, peers);
        }
        previous = state;
        state.advance();
      }
      hw.template mma_wait<0>(acc);
      consumer_release(hw, previous, peers);
      store_serially(hw, acc, own_part(hw, tiles.tile()), p);
    }
  }
};

}  // namespace hopgemm::ladder

#ifdef __CUDACC__
#include "ladder/kernel.cuh"
namespace hopgemm::ladder {
extern const Rung kRung07 = make_rung<Rung07>("7", "one wgmma group always in flight");
}
#endif
