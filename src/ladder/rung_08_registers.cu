// Rung 8: registers move from the producer to the consumers (setmaxnreg, in run_roles), so that each consumer
// can hold 64x320 sums: 160 a thread. A tile of 128x320 reads 7% less for each product than one of 128x256.
// An instruction and a TMA box are at most 256 wide: 320 columns are issued as 192 + 128, and loaded in
// halves.
#include "ladder/roles.h"

namespace hopgemm::ladder {

struct Rung08 {
  static constexpr KernelConfig config(DType t) { return two_consumers(t, 128, 320, 1, 3); }
  static constexpr Schedule kSchedule{.group = 8};
  static constexpr bool kPersistent = true, kReallocate = true;
  // The last column of tiles may hang over the edge: TMA fills with zeros, and clips.
  static constexpr int kConsumers = 2, kProducer = kWarpgroup, kCtasPerSm = 1, kStepN = 64;

  template <class Hw> static HOPGEMM_DEVICE void produce(Hw& hw, const Params<Hw>& p) {
    produce_tiles(hw, p, static_tiles(hw, p));
  }
  template <class Hw> static HOPGEMM_DEVICE void consume(Hw& hw, const Params<Hw>& p) {
    consume_tiles(hw, p, static_tiles(hw, p),
                  [&](const auto& acc, const Tile& t) { store_serially(hw, acc, t, p); });
  }
};

}  // namespace hopgemm::ladder

#ifdef __CUDACC__
#include "ladder/kernel.cuh"
namespace hopgemm::ladder {
extern const Rung kRung08 = make_rung<Rung08>("8", "setmaxnreg, 128x320");
}
#endif
