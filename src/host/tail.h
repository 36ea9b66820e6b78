// The tail of a walk: its last tiles, whose K is cut into ranges, one for each cluster that would have
// nothing to do (tile_scheduler.h). The sums of the parts go to the workspace, and a small kernel adds those
// of each tile, in their order (Osama et al., "Stream-K", 2023).
#pragma once
#include "host/normal_form.h"

namespace hopgemm {

inline constexpr int kMaxTail = 4096, kMaxRanges = 4096;
inline constexpr int64_t kMaxPool = 1024, kMaxPlaces = 1 << 30;  // clusters of a device; places of a tail

// Numbers of parts: each range begins one and, where ranges lie end to end, each tile does. (Where a tile
// begins with its range, one of them stays free.)
inline int num_parts(const TileGrid& g) {
  return g.k_step > 1 ? g.ranges : g.num_blocks - g.whole + g.ranges - 1;
}

// The matrix of sums: fp32, a tile's columns wide, the tiles of all parts and CTAs one below the other.
inline int64_t sums_rows(const KernelConfig& c, const TileGrid& g) { return part_row(c, num_parts(g), 0); }
inline int64_t sums_bytes(const KernelConfig& c, const TileGrid& g) {
  return g.ranges > 0 ? sums_rows(c, g) * c.tile_n * int64_t{sizeof(float)} : 0;
}

// A range is at least one step long, and a tile has no more parts than there are steps of K.
inline bool is_valid_tail(const KernelConfig& c, const Schedule& s, double blocks, int64_t k_tiles) {
  if (s.tail == 0) return s.ranges == 0;
  if (is_swapped(c) || s.tail > kMaxTail || s.tail > blocks || s.ranges < 1 || s.ranges > kMaxRanges)
    return false;
  const int64_t steps = s.tail * k_tiles;
  // HAZARD: places in the walk are 32 bits, and the last clusters look as far as the pool is wide beyond its
  // end.
  return s.ranges <= steps && (s.ranges + kMaxPool) * ((steps + s.ranges - 1) / s.ranges) <= kMaxPlaces;
}

// Parts of one tile of the tail: `count` of them, from part `first` on.
struct Parts {
  int first, count;
};
HOPGEMM_HOST_DEVICE constexpr Parts parts_of(const TileGrid& g, int tail_block) {
  if (g.k_step > 1) return {tail_block * g.k_step, g.k_step};
  const int first = tail_block * g.k_tiles / g.range_steps,
            last = ((tail_block + 1) * g.k_tiles - 1) / g.range_steps;
  return {first + tail_block, last - first + 1};
}

// In which order parts are added: group after group, each from its first to its last. Many parts of a small
// result take several threads.
inline constexpr int kManyGroups = 8;
HOPGEMM_HOST_DEVICE constexpr int add_groups(const TileGrid& g) {
  return g.k_tiles / kManyGroups > g.range_steps ? kManyGroups : 1;
}
HOPGEMM_HOST_DEVICE constexpr int first_of_group(int parts, int groups, int group) {
  return parts * group / groups;
}

// d = alpha * (the parts' sums) + beta * c + bias, rounded once, for every tile of the tail.
Status add_tail(const NormalProblem& problem, const KernelConfig& config, const TileGrid& grid,
                const void* sums, void* stream);

// Loads the kernels of add_tail onto the current device.
Status load_add_tail();

}  // namespace hopgemm
