// The kernel's one argument: tensor maps by value, the walk, and what the epilogue needs.
#pragma once
#include <cstdint>

#include "scheduler/tile_scheduler.h"

namespace hopgemm {

// A tile element's address is data + row * row_stride + col * col_stride + batch terms, in elements of
// `dtype`.
struct EpilogueMatrix {
  const void* data;
  int64_t row_stride, col_stride, batch_inner_stride, batch_outer_stride;
  DType dtype;
};

// d = alpha * acc + beta * c + bias, in fp32, then one rounding to d.dtype.
struct EpilogueParams {
  float alpha, beta;
  bool scaled;          // anything to do beyond rounding
  EpilogueMatrix c;     // data == nullptr: not read
  EpilogueMatrix bias;  // row_stride 0
  EpilogueMatrix d;     // where the direct store writes
  int m, n;
  int tma_columns;  // pieces of the tile that end by this column leave by TMA, the others by plain stores
                    // (normal_form.cc)
};

template <class TensorMap> struct GemmParams {
  TensorMap a, b, d;  // rank 4: {unit-stride dimension, the other, inner batch, outer batch}
  TensorMap sums;  // of the tail's parts: fp32, tile_n columns, part after part; unset without a tail
  TileGrid grid;
  int a_batch_inner, a_batch_outer;  // 0: broadcast, the batch coordinate is multiplied by it; else 1
  int b_batch_inner, b_batch_outer;
  CachePolicy a_policy, b_policy, d_policy;
  bool leaves_room;  // for another grid of this size beside it, which may take the SMs
  EpilogueParams epilogue;
};

}  // namespace hopgemm
