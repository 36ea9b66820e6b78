// Which CTA does which tile in which order: a pure function of coordinates and Schedule, the same on GPU,
// host, emulator. The grid is a fixed pool; cluster i takes tiles i, i + pool, ... No counter, no atomics, no
// state beyond an index.
#pragma once
#include "config/config.h"
#include "hw/device.h"

namespace hopgemm {

// The walk with the problem's sizes filled in. Counts are cluster tiles.
struct TileGrid {
  int m_blocks, n_blocks;
  int batch_inner, batch_outer;
  int num_blocks;  // all of them, batches included
  int group;
  int k_period;
  bool along_m;
};

struct Block {  // one cluster tile
  int m, n, batch_inner, batch_outer;
  bool k_reversed;
};

struct Tile {  // one CTA's tile: first row and column, in elements; may lie wholly out of range
  int m, n, batch_inner, batch_outer;
  bool k_reversed;
};

HOPGEMM_HOST_DEVICE constexpr int ceil_div(int64_t x, int64_t y) { return static_cast<int>((x + y - 1) / y); }

HOPGEMM_HOST_DEVICE constexpr TileGrid make_tile_grid(const Config& config, int64_t m, int64_t n,
                                                      int batch_inner, int batch_outer) {
  const KernelConfig& k = config.kernel;
  const int m_blocks = ceil_div(m, k.tile_m * k.cluster_m), n_blocks = ceil_div(n, k.tile_n * k.cluster_n);
  const int across = config.schedule.along_m ? n_blocks : m_blocks;
  const int group =
      config.schedule.group < across ? config.schedule.group : across;  // so that group * length fits
  return {m_blocks,
          n_blocks,
          batch_inner,
          batch_outer,
          m_blocks * n_blocks * batch_inner * batch_outer,
          group,
          config.schedule.k_period,
          config.schedule.along_m};
}

// Strips run to and fro (a boustrophedon): the last tiles of one strip are next to the first of the following
// one.
HOPGEMM_HOST_DEVICE constexpr Block block_at(const TileGrid& g, int index) {
  const int per_product = g.m_blocks * g.n_blocks;
  const int product = index / per_product;
  int rest = index % per_product;
  const int length = g.along_m ? g.m_blocks : g.n_blocks;  // steps along a strip
  const int across = g.along_m ? g.n_blocks : g.m_blocks;
  const int strip = rest / (g.group * length);
  rest -= strip * g.group * length;
  const int left = across - strip * g.group;
  const int width = left < g.group ? left : g.group;
  const int step = rest / width;
  const int x = strip * g.group + rest % width;
  const int y = strip & 1 ? length - 1 - step : step;
  bool reversed = false;
  if (g.k_period > 0) {
    const int superblocks = (length + g.k_period - 1) / g.k_period;  // per strip
    reversed = ((product + strip) * superblocks + step / g.k_period) & 1;
  }
  return {g.along_m ? y : x, g.along_m ? x : y, product % g.batch_inner, product / g.batch_inner, reversed};
}

template <KernelConfig kConfig> class TileScheduler {
 public:
  HOPGEMM_DEVICE TileScheduler(const TileGrid& grid, int cluster, int num_clusters, int cta_rank)
      : grid_(grid),
        index_(cluster),
        step_(num_clusters),
        cta_rank_(cta_rank) {}
  HOPGEMM_DEVICE bool valid() const { return index_ < grid_.num_blocks; }
  HOPGEMM_DEVICE void next() { index_ += step_; }
  HOPGEMM_DEVICE Tile tile() const {
    const Block b = block_at(grid_, index_);
    const int m = b.m * kConfig.cluster_m + cta_rank_ % kConfig.cluster_m;
    const int n = b.n * kConfig.cluster_n +
                  (is_swapped(kConfig) ? cta_rank_ % cluster_size(kConfig) : cta_rank_) / kConfig.cluster_m;
    return {m * kConfig.tile_m, n * kConfig.tile_n, b.batch_inner, b.batch_outer, b.k_reversed};
  }

 private:
  const TileGrid& grid_;
  int index_, step_, cta_rank_;
};

}  // namespace hopgemm
