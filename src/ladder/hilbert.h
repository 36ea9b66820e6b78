// The Hilbert order of rung 11: a curve through every cell of a grid that stays compact at every scale, so
// that the tiles in flight share panels of A and of B. Any grid, not just a power of two.
#pragma once
#include "scheduler/tile_scheduler.h"

namespace hopgemm::ladder {

struct Cell {
  int m, n;
};

namespace curve {

struct Step {
  int m, n;
};
HOPGEMM_HOST_DEVICE constexpr int length(Step s) {
  const int x = s.m + s.n;  // one of the two is 0
  return x < 0 ? -x : x;
}
HOPGEMM_HOST_DEVICE constexpr int sign(int x) { return (x > 0) - (x < 0); }
HOPGEMM_HOST_DEVICE constexpr Step unit(Step s) { return {sign(s.m), sign(s.n)}; }
HOPGEMM_HOST_DEVICE constexpr Step operator+(Step x, Step y) { return {x.m + y.m, x.n + y.n}; }
HOPGEMM_HOST_DEVICE constexpr Step operator-(Step x, Step y) { return {x.m - y.m, x.n - y.n}; }
HOPGEMM_HOST_DEVICE constexpr Step operator*(int f, Step x) { return {f * x.m, f * x.n}; }

// About half of a side, and even where it can be: a curve through a rectangle of odd length would end in the
// wrong corner.
HOPGEMM_HOST_DEVICE constexpr Step half(Step s) {
  const int whole = length(s), part = whole / 2;
  return (part % 2 && whole > 2 ? part + 1 : part) * unit(s);
}

}  // namespace curve

// Cell `index` on a curve that starts at (0, 0) and ends at the far end of the longer side. A rectangle is
// walked from its corner `at` along `along`, with `across` to its side. A long one is cut in two; any other
// is walked up the first half of `across`, along the whole second half, and down what is left: three
// rectangles, each walked like the whole, of which one contains the index.
HOPGEMM_HOST_DEVICE constexpr Cell hilbert_cell(int m_blocks, int n_blocks, int index) {
  using curve::Step;
  Step at{0, 0}, along{m_blocks, 0}, across{0, n_blocks};
  if (n_blocks > m_blocks) along = {0, n_blocks}, across = {m_blocks, 0};
  for (;;) {
    const int width = length(along), height = length(across);
    const Step forward = unit(along), sideways = unit(across);
    if (height == 1 || width == 1) {
      const Step end = at + index * (height == 1 ? forward : sideways);
      return {end.m, end.n};
    }
    const Step along_half = curve::half(along), across_half = curve::half(across);
    if (2 * width > 3 * height) {
      const int first = length(along_half) * height;
      if (index < first) {
        along = along_half;
      } else {
        index -= first;
        at = at + along_half, along = along - along_half;
      }
      continue;
    }
    // As long as it is wide, nearly: `along` is halved as it is, `across` evenly.
    const Step near = (width / 2) * forward;
    const int up = length(across_half) * length(near);
    const int over = width * (height - length(across_half));
    if (index < up) {
      along = across_half, across = near;
    } else if (index < up + over) {
      index -= up;
      at = at + across_half, across = across - across_half;
    } else {
      index -= up + over;
      at = at + along - forward + across_half - sideways;
      across = -1 * (along - near), along = -1 * across_half;
    }
  }
}

}  // namespace hopgemm::ladder
