// Which CTA does which tile in which order: a pure function of coordinates and Schedule, the same on GPU,
// host, emulator. The grid is a fixed pool; cluster i takes items i, i + pool, ... No counter, no atomics, no
// state beyond an index.
//
// An item is a whole tile, or a range of the tail: of the last tiles, whose steps of K are shared by as many
// clusters as there are ranges, since so few tiles would leave most idle. Where every tile gets as many
// ranges, its steps are dealt to them like cards, so that neighbouring bytes are read at about the same time;
// else, or where end_to_end() says so, the steps of all tiles lie end to end and are cut into ranges of one
// length (stream-K). The sums of each part of a tile go to a place of their own; host/tail.h says who adds
// them up.
#pragma once
#include "config/config.h"
#include "hw/device.h"
#include "scheduler/divisor.h"

namespace hopgemm {

// The walk with the problem's sizes filled in. Counts are cluster tiles.
struct TileGrid {
  int m_blocks, n_blocks;
  Divisor batch_inner;
  int batch_outer;
  int num_blocks;  // all of them, batches included
  Divisor per_product, per_strip;  // tiles
  Divisor group, last_group;  // the width of a strip, and of the last one
  int last_strip;
  Divisor k_period;
  bool along_m;
  Divisor k_tiles;  // steps of K of a tile
  int whole;  // tiles before the tail
  int ranges;  // of the tail
  Divisor range_steps;  // their length at most
  Divisor k_step;  // from one step of a range to the next: the ranges of a tile, 1 where they lie end to end
  int first;  // item of the launch
  int end;  // of the launch: the place after its last one
  Divisor split;  // CTAs of a cluster that share the K of a tile
};

struct Block {  // one cluster tile
  int m, n, batch_inner, batch_outer;
  bool k_reversed;
};

// Steps of K: first, first + step, ... `count` of them.
struct KSteps {
  int first, count, step;
};
// One of several shares of all steps, dealt like cards: whoever sums the others reads neighbouring bytes of
// the same rows at about the same time.
HOPGEMM_HOST_DEVICE constexpr KSteps dealt_steps(int k_tiles, const Divisor& shares, int share) {
  return {share, (k_tiles - share + shares - 1) / shares, shares};
}
HOPGEMM_HOST_DEVICE constexpr KSteps reversed(const KSteps& k) {
  return {k.first + (k.count - 1) * k.step, k.count, -k.step};
}

// Where many shares are long, and end where their tile does, they lie end to end. Dealt, all CTAs are at the
// same columns of rows whose pitch is often a power of two, and these meet in few channels of the memory: 8
// shares of 128 steps, 512x512x65536, were 5% slower. (Not where no operand is read along K. 4 shares of 28
// steps are 3% faster dealt, 2 of 256 up to 2%. docs/notes/2026-11-30-long-k.md)
inline constexpr int kManyShares = 4, kLongShare = 64;
HOPGEMM_HOST_DEVICE constexpr bool end_to_end(const KernelConfig& c, int k_tiles, int shares) {
  return shares >= kManyShares && k_tiles % shares == 0 && k_tiles / shares >= kLongShare &&
         (c.a_major == Major::kK || c.b_major == Major::kK);
}

struct Tile {  // one CTA's tile: first row and column, in elements; may lie wholly out of range
  int m, n, batch_inner, batch_outer;
  KSteps k;  // that are summed, in this order
  int is_part;  // 0 or 1; a bool costs a register more, which tiles of 64x128 in pairs do not have
};

HOPGEMM_HOST_DEVICE constexpr TileGrid make_tile_grid(const Config& config, int64_t m, int64_t n, int64_t k,
                                                      int batch_inner, int batch_outer) {
  const KernelConfig& c = config.kernel;
  const Schedule& s = config.schedule;
  const int m_blocks = ceil_div(m, c.tile_m * c.cluster_m), n_blocks = ceil_div(n, c.tile_n * c.cluster_n);
  const int across = s.along_m ? n_blocks : m_blocks, length = s.along_m ? m_blocks : n_blocks;
  const int group = s.group < across ? s.group : across;  // so that group * length fits
  const int last_strip = (across - 1) / group;
  const int blocks = m_blocks * n_blocks * batch_inner * batch_outer, k_tiles = ceil_div(k, kTileK);
  int ranges = 0, range_steps = 0, k_step = 1, end = blocks;
  if (s.tail > 0) {
    if (s.ranges % s.tail == 0 && !end_to_end(c, k_tiles, s.ranges / s.tail)) k_step = s.ranges / s.tail;
    range_steps = ceil_div(int64_t{s.tail} * k_tiles, s.ranges);
    ranges = k_step > 1 ? s.ranges : ceil_div(s.tail * k_tiles, range_steps);
    end += (k_step > 1 ? ranges * range_steps : s.tail * k_tiles) - s.tail;
  }
  return {.m_blocks = m_blocks,
          .n_blocks = n_blocks,
          .batch_inner = Divisor(batch_inner),
          .batch_outer = batch_outer,
          .num_blocks = blocks,
          .per_product = Divisor(m_blocks * n_blocks),
          .per_strip = Divisor(group * length),
          .group = Divisor(group),
          .last_group = Divisor(across - last_strip * group),
          .last_strip = last_strip,
          .k_period = Divisor(s.k_period),
          .along_m = s.along_m,
          .k_tiles = Divisor(k_tiles),
          .whole = blocks - s.tail,
          .ranges = ranges,
          .range_steps = Divisor(range_steps),
          .k_step = Divisor(k_step),
          .first = 0,
          .end = end,
          .split = Divisor(s.split)};
}
HOPGEMM_HOST_DEVICE constexpr int num_items(const TileGrid& g) { return g.whole + g.ranges; }

// Strips run to and fro (a boustrophedon): the last tiles of one strip are next to the first of the following
// one.
HOPGEMM_HOST_DEVICE constexpr Block block_at(const TileGrid& g, int index) {
  const int product = index / g.per_product, in_product = index % g.per_product;
  const int strip = in_product / g.per_strip, in_strip = in_product % g.per_strip;
  const Divisor& width = strip == g.last_strip ? g.last_group : g.group;
  const int step = in_strip / width;
  const int length = g.along_m ? g.m_blocks : g.n_blocks;  // steps along a strip
  const int x = strip * g.group + in_strip % width;
  const int y = strip & 1 ? length - 1 - step : step;
  bool reversed = false;
  if (g.k_period > 0) {
    const int superblocks = (length + g.k_period - 1) / g.k_period;  // per strip
    reversed = ((product + strip) * superblocks + step / g.k_period) & 1;
  }
  return {g.along_m ? y : x, g.along_m ? x : y, product % g.batch_inner, product / g.batch_inner, reversed};
}

// A block, or a part of one: that which a range of the tail has of it.
struct Piece {
  int block;
  KSteps k;
  int part;  // its number in the order of the tail; -1: the block is whole
};

// A place in the walk: the number of a whole tile, or g.whole and the steps of K of the tail before it.
HOPGEMM_HOST_DEVICE constexpr int place_of_item(const TileGrid& g, int item) {
  return item < g.whole ? item : g.whole + (item - g.whole) * g.range_steps;
}
HOPGEMM_HOST_DEVICE constexpr Piece piece_at(const TileGrid& g, int place) {
  if (place < g.whole) return {place, {0, g.k_tiles, 1}, -1};
  const int step = place - g.whole, range = step / g.range_steps;
  if (g.k_step > 1) {
    const int block = range / g.k_step, share = range % g.k_step;
    return {g.whole + block, dealt_steps(g.k_tiles, g.k_step, share), range};
  }
  const int block = step / g.k_tiles;
  const int left_of_range = (range + 1) * g.range_steps - step,
            left_of_block = (block + 1) * g.k_tiles - step;
  const int count = left_of_block < left_of_range ? left_of_block : left_of_range;
  // Every step into the next block or range is one part further.
  return {g.whole + block, {step - block * g.k_tiles, count, 1}, range + block};
}

// CTAs that read the same panels drift apart, wave by wave, until what one has read has left L2 before the
// next one asks for it (16384^3: 20 to 28 GB from DRAM, 9 where they do not). A launch that ends
// after a few waves lines them up again, since the next one waits for all of it. 0 waves: one launch.
class Launches {
 public:
  constexpr Launches(const TileGrid& walk, int waves, int clusters)
      : walk_(walk),
        clusters_(clusters),
        items_(num_items(walk)),
        items_each_(items_) {
    if (waves > 0 && int64_t{waves} * clusters < items_) items_each_ = waves * clusters;
  }
  constexpr int count() const { return (items_ + items_each_ - 1) / items_each_; }
  // Of launch i: its part of the walk, and its clusters.
  constexpr TileGrid grid(int i) const {
    TileGrid g = walk_;
    g.first = i * items_each_;
    if (g.first + items_each_ < items_) g.end = place_of_item(g, g.first + items_each_);
    return g;
  }
  constexpr int clusters(int i) const {
    const int left = items_ - i * items_each_;
    return left < clusters_ ? left : clusters_;
  }

 private:
  TileGrid walk_;
  int clusters_, items_, items_each_;
};

// First row of a CTA's part in the matrix of sums, which is tile_n columns wide.
HOPGEMM_HOST_DEVICE constexpr int64_t part_row(const KernelConfig& c, int part, int cta_rank) {
  return (int64_t{part} * cluster_size(c) + cta_rank) * c.tile_m;
}

// Where a CTA's tile of a block begins, in elements.
struct Origin {
  int m, n;
};
HOPGEMM_HOST_DEVICE constexpr Origin origin_of(const KernelConfig& c, const Block& b, int cta_rank) {
  const int rank = cta_rank % cluster_size(c);  // the CTAs of a split share a tile
  return {(b.m * c.cluster_m + rank % c.cluster_m) * c.tile_m,
          (b.n * c.cluster_n + rank / c.cluster_m) * c.tile_n};
}

template <KernelConfig kConfig> class TileScheduler {
 public:
  HOPGEMM_DEVICE TileScheduler(const TileGrid& grid, int cluster, int num_clusters, int cta_rank)
      : grid_(grid),
        place_(place_of_item(grid, grid.first + cluster)),
        num_clusters_(num_clusters),
        cta_rank_(cta_rank),
        share_(dealt_steps(grid.k_tiles, grid.split, split_index(kConfig, cta_rank))) {}
  HOPGEMM_DEVICE bool valid() const { return place_ < grid_.end; }
  HOPGEMM_DEVICE void next() {
    if (is_whole()) {
      place_ = place_of_item(grid_, place_ + num_clusters_);
    } else {
      const int step = place_ - grid_.whole, next = step + piece().k.count;
      const bool is_done = grid_.k_step > 1 || next % grid_.range_steps == 0;
      const int range = step / grid_.range_steps + num_clusters_;
      place_ = grid_.whole + (is_done ? range * grid_.range_steps : next);
    }
  }
  HOPGEMM_DEVICE Piece piece() const {
    if constexpr (is_swapped(kConfig)) return {place_, share_, -1};  // these have no tail
    else return piece_at(grid_, place_);
  }
  // Where the operands lie.
  HOPGEMM_DEVICE Tile tile() const {
    const Piece p = piece();
    const Block b = block_at(grid_, p.block);
    const Origin o = origin_of(kConfig, b, cta_rank_);
    return {o.m, o.n, b.batch_inner, b.batch_outer, b.k_reversed ? reversed(p.k) : p.k, !is_whole()};
  }
  // Where the sums go: into the result, or to their place in the matrix of sums. Its steps of K mean nothing.
  HOPGEMM_DEVICE Tile output() const {
    const Piece p = piece();
    if (is_whole()) return tile();
    return {static_cast<int>(part_row(kConfig, p.part, cta_rank_)), 0, 0, 0, {}, true};
  }

 private:
  HOPGEMM_DEVICE bool is_whole() const { return is_swapped(kConfig) || place_ < grid_.whole; }

  const TileGrid& grid_;
  int place_, num_clusters_, cta_rank_;
  KSteps share_;  // of a CTA of a split
};

}  // namespace hopgemm
