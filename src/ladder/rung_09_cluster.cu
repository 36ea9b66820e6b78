// Rung 9: two CTAs in a cluster take tiles one above the other and share the columns of B: each loads half of
// them and multicasts it to both. The roles stay as they are; the config says that there is a peer, and from
// it follow who loads what (load_stage), who hears of a released stage (peer_mask), how many arrivals that is
// (empty_arrivals), and that nobody may leave before the peer is done (drain_ring).
#include "ladder/roles.h"

namespace hopgemm::ladder {

template <int kTileN, int kStages> struct Rung09 {
  static constexpr KernelConfig config(DType t) { return two_consumers(t, 128, kTileN, 2, kStages); }
  static constexpr Schedule kSchedule{.group = 8};
  static constexpr bool kPersistent = true, kReallocate = true;
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
extern const Rung kRung09 = make_rung<Rung09<320, 3>>("9", "cluster of 2, multicast, 128x320");
extern const Rung kRung09n = make_rung<Rung09<256, 4>>("9n", "cluster of 2, multicast, 128x256");
}  // namespace hopgemm::ladder
#endif
