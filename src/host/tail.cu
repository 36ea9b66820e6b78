#include "host/tail.h"

#include "host/small_kernel.h"

namespace hopgemm {
namespace {

constexpr int kQuad = 4;  // columns of one thread

struct AddParams {
  EpilogueParams epilogue;
  DType half;  // what a 16-bit element is
  KernelConfig config;
  TileGrid grid;
  const float4* sums;
  int quads_across, quads;  // of a row of a tile; of a tile
  int blocks_per_tile;      // of threads
};

__device__ void add(float4& sum, const float4& x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; }

// `from`: the quad in the tile's first part; the following parts are `step` apart. A few at a time, whose
// loads are in flight together.
__device__ float4 sum_parts(const float4* from, int64_t step, int first, int end) {
  constexpr int kAtOnce = 4;
  float4 sum{};
  for (int i = first; i < end; i += kAtOnce) {
    float4 parts[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (i + j < end) parts[j] = from[(i + j) * step];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (i + j == first) sum = parts[j];  // not added to 0, so that -0 stays -0
      else if (i + j < end) add(sum, parts[j]);
    }
  }
  return sum;
}

// Elements of d from this on, `count` of them: as one word where they lie so.
template <class Element, class Word>
__device__ void store(const EpilogueMatrix& d, int64_t at, const Element (&values)[kQuad], int count) {
  Element* const to = static_cast<Element*>(const_cast<void*>(d.data)) + at;
  if (count == kQuad && d.col_stride == 1 && reinterpret_cast<uintptr_t>(to) % sizeof(Word) == 0) {
    *reinterpret_cast<Word*>(to) = *reinterpret_cast<const Word*>(values);
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i)
      if (i < count) to[i * d.col_stride] = values[i];
  }
}

__device__ void finish(const AddParams& p, const Block& block, int m, int n, const float4& sum) {
  const EpilogueParams& e = p.epilogue;
  const int count = min(kQuad, e.n - n);
  if (m >= e.m || count <= 0) return;
  auto index = [&](const EpilogueMatrix& x) {
    return m * x.row_stride + n * x.col_stride + block.batch_inner * x.batch_inner_stride +
           block.batch_outer * x.batch_outer_stride;
  };
  alignas(16) float values[kQuad] = {sum.x, sum.y, sum.z, sum.w};
  if (e.scaled) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) values[i] *= e.alpha;
    for (int addend = 0; addend < 2; ++addend) {
      const EpilogueMatrix& x = addend == 0 ? e.c : e.bias;
      if (!x.data) continue;
      const int64_t at = index(x);
      const float factor = addend == 0 ? e.beta : 1.0f;
#pragma unroll
      for (int i = 0; i < kQuad; ++i)
        if (i < count) values[i] = fmaf(factor, element(x, p.half, at + i * x.col_stride), values[i]);
    }
  }
  if (e.d.dtype == DType::kF32) return store<float, float4>(e.d, index(e.d), values, count);
  alignas(8) uint16_t rounded[kQuad];
#pragma unroll
  for (int i = 0; i < kQuad; ++i) rounded[i] = round_to(p.half, values[i]);
  store<uint16_t, uint2>(e.d, index(e.d), rounded, count);
}

// A few rows of one CTA's tile. kGroups threads share a quad of columns, each with its group of parts.
template <int kGroups> __global__ void __launch_bounds__(kSmallKernelThreads)
    add_kernel(const __grid_constant__ AddParams p) {
  constexpr int kQuads = kSmallKernelThreads / kGroups;  // of a block
  __shared__ float4 sums[kGroups][kQuads];
  const int group = threadIdx.x / kQuads, lane = threadIdx.x % kQuads;
  const int tile = blockIdx.x / p.blocks_per_tile, size = cluster_size(p.config);
  const int tail_block = tile / size, rank = tile % size;
  const int quad = blockIdx.x % p.blocks_per_tile * kQuads + lane;  // tiles are whole blocks of quads
  const Parts parts = parts_of(p.grid, tail_block);
  wait_for_the_kernel_before();
  const float4* const from = p.sums + (int64_t{parts.first} * size + rank) * p.quads + quad;
  float4 sum = sum_parts(from, int64_t{size} * p.quads, first_of_group(parts.count, kGroups, group),
                         first_of_group(parts.count, kGroups, group + 1));
  if constexpr (kGroups > 1) {
    sums[group][lane] = sum;
    __syncthreads();
    if (group > 0) return;
#pragma unroll 1
    for (int g = 1; g < kGroups; ++g)
      if (first_of_group(parts.count, kGroups, g) < first_of_group(parts.count, kGroups, g + 1))
        add(sum, sums[g][lane]);
  }
  const Block block = block_at(p.grid, p.grid.whole + tail_block);
  const Origin origin = origin_of(p.config, block, rank);
  finish(p, block, origin.m + quad / p.quads_across, origin.n + quad % p.quads_across * kQuad, sum);
}

}  // namespace

Status add_tail(const NormalProblem& problem, const KernelConfig& config, const TileGrid& grid,
                const void* sums, void* stream) {
  const EpilogueParams& e = problem.epilogue;
  const int groups = add_groups(grid);
  AddParams p{e, half_of(e), config, grid, static_cast<const float4*>(sums)};
  p.quads_across = config.tile_n / kQuad, p.quads = config.tile_m * p.quads_across;
  p.blocks_per_tile = p.quads * groups / kSmallKernelThreads;
  const int blocks = (grid.num_blocks - grid.whole) * cluster_size(config) * p.blocks_per_tile;
  return launch_small(groups == 1 ? add_kernel<1> : add_kernel<kManyGroups>, p, blocks, stream, "add_kernel");
}

Status load_add_tail() {
  HOPGEMM_TRY(load_small(reinterpret_cast<const void*>(add_kernel<1>)));
  return load_small(reinterpret_cast<const void*>(add_kernel<kManyGroups>));
}

}  // namespace hopgemm
