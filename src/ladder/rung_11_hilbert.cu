// Rung 11: tiles in Hilbert order. Clusters that run at the same time lie in a compact patch of the result at
// every scale, not in a strip of fixed width, and so share more panels of A and B in L2.
#include "ladder/hilbert.h"
#include "ladder/roles.h"

namespace hopgemm::ladder {

// As TileScheduler: cluster i takes cells i, i + pool, ... of the curve.
template <class Hw> class HilbertTiles {
 public:
  HOPGEMM_DEVICE HilbertTiles(Hw& hw, const TileGrid& grid)
      : grid_(grid),
        index_(hw.cluster()),
        step_(hw.num_clusters()),
        cta_rank_(hw.cta_rank()) {}
  HOPGEMM_DEVICE bool valid() const { return index_ < grid_.num_blocks; }
  HOPGEMM_DEVICE void next() { index_ += step_; }
  HOPGEMM_DEVICE Tile tile() const {
    constexpr KernelConfig kConfig = Hw::kKernelConfig;
    const Cell cell = hilbert_cell(grid_.m_blocks, grid_.n_blocks, index_);
    const int m = cell.m * kConfig.cluster_m + cluster_m_index(kConfig, cta_rank_);
    const int n = cell.n * kConfig.cluster_n + cluster_n_index(kConfig, cta_rank_);
    Tile t{};
    t.m = m * kConfig.tile_m, t.n = n * kConfig.tile_n;
    return t;
  }

 private:
  const TileGrid& grid_;
  int index_, step_, cta_rank_;
};

struct Rung11 {
  static constexpr KernelConfig config(DType t) { return two_consumers(t, 128, 256, 2, 4); }
  static constexpr Schedule kSchedule{.max_ctas = 128};  // 64 clusters: a patch of 8 x 8
  static constexpr bool kPersistent = true, kReallocate = true;
  static constexpr int kConsumers = 2, kProducer = kWarpgroup, kCtasPerSm = 1, kStepN = 64;

  template <class Hw> static HOPGEMM_DEVICE void produce(Hw& hw, const Params<Hw>& p) {
    produce_tiles(hw, p, HilbertTiles<Hw>(hw, p.grid));
  }
  template <class Hw> static HOPGEMM_DEVICE void consume(Hw& hw, const Params<Hw>& p) {
    StagingState staging;
    consume_tiles(hw, p, HilbertTiles<Hw>(hw, p.grid),
                  [&](const auto& acc, const Tile& t) { store_overlapped(hw, acc, t, p, staging); });
  }
};

}  // namespace hopgemm::ladder

#ifdef __CUDACC__
#include "ladder/kernel.cuh"
namespace hopgemm::ladder {
extern const Rung kRung11 = make_rung<Rung11>("11", "Hilbert order");
}
#endif
