// Rung 2: wgmma reads both operands from shared memory, so no operand passes through registers; the result
// leaves by TMA through shared memory, for which a proxy fence is needed.
// Still serial: load, wait, multiply, wait. Only other CTAs on the same SM fill the gaps.
#include "ladder/roles.h"

namespace hopgemm::ladder {

struct Rung02 {
  static constexpr KernelConfig config(DType t) { return one_consumer(t, 128, 128, 1); }
  static constexpr Schedule kSchedule{.group = 1};  // down one column of tiles after the other
  static constexpr bool kPersistent = false, kReallocate = false;
  static constexpr int kConsumers = 1, kProducer = 0, kCtasPerSm = 3, kStepN = 128;

  template <class Hw> static HOPGEMM_DEVICE void consume(Hw& hw, const Params<Hw>& p) {
    const Tile t = static_tiles(hw, p).tile();
    typename Hw::Accumulator acc;
    uint32_t phase = 0;
    for (int k = 0; k < p.grid.k_tiles; ++k) {
      if (hw.is_leader()) {
        hw.arrive_expect_tx(hw.full(0), tx_bytes(Hw::kKernelConfig));
        load_stage(hw, p, t, 0, k);
      }
      hw.wait(hw.full(0), phase);  // pairs with the bytes of the copies
      phase ^= 1;
      hw.mma(acc, 0, /*accumulate=*/k > 0);
      hw.mma_commit();
      hw.template mma_wait<0>(acc);
      hw.consumer_sync();  // HAZARD: the next copy overwrites what all four warps read, and uses their
                           // barrier again
    }
    store_serially(hw, acc, t, p);
  }
};

}  // namespace hopgemm::ladder

#ifdef __CUDACC__
#include "ladder/kernel.cuh"
namespace hopgemm::ladder {
extern const Rung kRung02 = make_rung<Rung02>("2", "wgmma from shared memory, serial; TMA store");
}
#endif
