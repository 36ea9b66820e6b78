// The problem as a swapped kernel sees it, and which kernels fit a problem.
#pragma once
#include <utility>

#include "config/config.h"
#include "host/normal_form.h"

namespace hopgemm {

// The caller's way round: rows and columns, and its A and B.
constexpr KernelConfig as_called(KernelConfig c) {
  if (!is_swapped(c)) return c;
  std::swap(c.a_major, c.b_major);
  std::swap(c.tile_m, c.tile_n);
  std::swap(c.cluster_m, c.cluster_n);
  return c;
}

constexpr bool fits(const KernelConfig& c, const NormalProblem& p, DType dtype) {
  const KernelConfig called = as_called(c);
  return c.dtype == dtype && called.a_major == p.a.major && called.b_major == p.b.major;
}

// d' = b' a': rows and columns change places everywhere. The result then lies column by column, which no TMA
// store of a swapped kernel has to know: it has none.
inline void swap_for(const KernelConfig& c, NormalProblem& p) {
  if (!is_swapped(c)) return;
  std::swap(p.a, p.b);
  std::swap(p.m, p.n);
  EpilogueParams& e = p.epilogue;
  std::swap(e.m, e.n);
  for (EpilogueMatrix* x : {&e.c, &e.bias, &e.d}) std::swap(x->row_stride, x->col_stride);
  e.tma_columns = 0;
}

}  // namespace hopgemm
