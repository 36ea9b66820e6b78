// Rung 6: two consumer warpgroups and a tile of 128x256, 64 rows each. One warpgroup could not hold it: 256
// sums a thread. While one waits for its wgmma, the tensor cores have the other's; and a tile twice as large
// asks for a quarter less of shared memory and L2 for each product.
#include "ladder/roles.h"

namespace hopgemm::ladder {

struct Rung06 {
  static constexpr KernelConfig config(DType t) { return two_consumers(t, 128, 256, 1, 4); }
  static constexpr Schedule kSchedule{.group = 8};
  static constexpr bool kPersistent = true, kReallocate = false;
  static constexpr int kConsumers = 2, kProducer = 32, kCtasPerSm = 1, kStepN = 256;

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
extern const Rung kRung06 = make_rung<Rung06>("6", "two consumer warpgroups, 128x256");
}
#endif
