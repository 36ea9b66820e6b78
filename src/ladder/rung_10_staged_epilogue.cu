// Rung 10: the epilogue stops waiting. Two staging slots a consumer: one is filled while TMA reads the other,
// and nobody waits for the result to reach memory; the producer is loading the next tile all the while.
#include "ladder/roles.h"

namespace hopgemm::ladder {

template <int kTileN, int kStages> struct Rung10 {
  static constexpr KernelConfig config(DType t) { return two_consumers(t, 128, kTileN, 2, kStages); }
  static constexpr Schedule kSchedule{.group = 8};
  static constexpr bool kPersistent = true, kReallocate = true;
  static constexpr int kConsumers = 2, kProducer = kWarpgroup, kCtasPerSm = 1, kStepN = 64;

  template <class Hw> static HOPGEMM_DEVICE void produce(Hw& hw, const Params<Hw>& p) {
    produce_tiles(hw, p, static_tiles(hw, p));
  }
  template <class Hw> static HOPGEMM_DEVICE void consume(Hw& hw, const Params<Hw>& p) {
    StagingState staging;
    consume_tiles(hw, p, static_tiles(hw, p),
                  [&](const auto& acc, const Tile& t) { store_overlapped(hw, acc, t, p, staging); });
  }
};

}  // namespace hopgemm::ladder

#ifdef __CUDACC__
#include "ladder/kernel.cuh"
namespace hopgemm::ladder {
extern const Rung kRung10 = make_rung<Rung10<320, 3>>("10", "staged TMA epilogue, overlapped, 128x320");
extern const Rung kRung10n = make_rung<Rung10<256, 4>>("10n", "staged TMA epilogue, overlapped, 128x256");
}  // namespace hopgemm::ladder
#endif
