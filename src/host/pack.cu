#include "host/pack.h"

#include <algorithm>

#include "host/small_kernel.h"

namespace hopgemm {
namespace {

constexpr int kPackTile = 32;  // a warp reads or writes 32 neighbours along whichever dimension is contiguous

struct PackedOperand {
  const uint16_t* source;
  uint16_t* destination;
  int64_t mn, k, mn_stride, k_stride, padded_k;
  int64_t batch[kMaxBatchDims], batch_stride[kMaxBatchDims];
  int batch_dims;
  int64_t mn_tiles, k_tiles, tiles;  // 0 tiles: this one lies well as it is
};
struct PackParams {
  PackedOperand a, b;
};

// 32 x 32 elements at a time through shared memory, so that reads follow the source's rows and writes the
// copy's.
__device__ void pack_tile(const PackedOperand& p, int64_t t) {
  constexpr int kRows = kSmallKernelThreads / kPackTile;  // at a time
  __shared__ uint16_t tile[kPackTile][kPackTile + 2];
  const int x = threadIdx.x % kPackTile, y0 = threadIdx.x / kPackTile;
  const bool along_mn = p.mn_stride == 1;
  const int64_t k0 = t % p.k_tiles * kPackTile, mn0 = t / p.k_tiles % p.mn_tiles * kPackTile;
  const int64_t batch = t / (p.k_tiles * p.mn_tiles);
  int64_t offset = 0;
  for (int64_t i = p.batch_dims - 1, rest = batch; i >= 0; --i) {
    offset += rest % p.batch[i] * p.batch_stride[i];
    rest /= p.batch[i];
  }
  for (int y = y0; y < kPackTile; y += kRows) {
    const int64_t mn = mn0 + (along_mn ? x : y), k = k0 + (along_mn ? y : x);
    if (mn < p.mn && k < p.k)
      tile[along_mn ? x : y][along_mn ? y : x] = p.source[offset + mn * p.mn_stride + k * p.k_stride];
  }
  __syncthreads();
  for (int y = y0; y < kPackTile; y += kRows) {
    const int64_t mn = mn0 + y, k = k0 + x;
    if (mn < p.mn && k < p.k) p.destination[(batch * p.mn + mn) * p.padded_k + k] = tile[y][x];
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kSmallKernelThreads) pack_kernel(const __grid_constant__ PackParams p) {
  wait_for_the_kernel_before();
  for (int64_t t = blockIdx.x; t < p.a.tiles + p.b.tiles; t += gridDim.x) {
    if (t < p.a.tiles) pack_tile(p.a, t);
    else pack_tile(p.b, t - p.a.tiles);
  }
}

struct FillParams {
  EpilogueParams epilogue;
  DType half;  // what a 16-bit element is
  int64_t batch_inner, elements;
};

__global__ void __launch_bounds__(kSmallKernelThreads) fill_kernel(const __grid_constant__ FillParams p) {
  const EpilogueParams& e = p.epilogue;
  wait_for_the_kernel_before();
  for (int64_t i = int64_t{blockIdx.x} * kSmallKernelThreads + threadIdx.x; i < p.elements;
       i += int64_t{gridDim.x} * kSmallKernelThreads) {
    const int64_t n = i % e.n, m = i / e.n % e.m, batch = i / e.n / e.m;
    const int64_t inner = batch % p.batch_inner, outer = batch / p.batch_inner;
    auto index = [&](const EpilogueMatrix& x) {
      return m * x.row_stride + n * x.col_stride + inner * x.batch_inner_stride +
             outer * x.batch_outer_stride;
    };
    float value = 0;
    if (e.c.data) value = fmaf(e.beta, element(e.c, p.half, index(e.c)), 0.0f);
    if (e.bias.data) value += element(e.bias, p.half, index(e.bias));
    void* d = const_cast<void*>(e.d.data);
    if (e.d.dtype == DType::kF32) static_cast<float*>(d)[index(e.d)] = value;
    else static_cast<uint16_t*>(d)[index(e.d)] = round_to(p.half, value);
  }
}

// The kernels stride over more.
int some_blocks(int64_t blocks) { return static_cast<int>(std::min<int64_t>(blocks, 4096)); }

PackedOperand packed(const NormalOperand& o, int64_t mn, int64_t k, void* destination) {
  PackedOperand p{};
  if (!o.pack) return p;
  p.source = static_cast<const uint16_t*>(o.source.data);
  p.destination = static_cast<uint16_t*>(destination);
  p.mn = mn, p.k = k, p.mn_stride = o.source.row_stride, p.k_stride = o.source.col_stride,
  p.padded_k = o.mn_stride;
  p.mn_tiles = (mn + kPackTile - 1) / kPackTile, p.k_tiles = (k + kPackTile - 1) / kPackTile;
  p.tiles = p.mn_tiles * p.k_tiles;
  p.batch_dims = o.source_batch_dims;
  for (int i = 0; i < p.batch_dims; ++i) {
    p.batch[i] = o.source_batch[i], p.batch_stride[i] = o.source.batch_stride[i];
    p.tiles *= p.batch[i];
  }
  return p;
}

}  // namespace

Status pack_operands(NormalProblem& p, void* workspace, void* stream) {
  if (!p.a.pack && !p.b.pack) return {};
  char* const of_a = static_cast<char*>(workspace);
  char* const of_b = of_a + p.a.packed_bytes;
  PackParams params{packed(p.a, p.m, p.k, of_a), packed(p.b, p.n, p.k, of_b)};
  if (p.a.pack) p.a.data = of_a;
  if (p.b.pack) p.b.data = of_b;
  return launch_small(pack_kernel, params, some_blocks(params.a.tiles + params.b.tiles), stream,
                      "pack_kernel");
}

Status load_pack_and_fill() {
  HOPGEMM_TRY(load_small(reinterpret_cast<const void*>(pack_kernel)));
  return load_small(reinterpret_cast<const void*>(fill_kernel));
}

Status fill(const NormalProblem& problem, void* stream) {
  const EpilogueParams& e = problem.epilogue;
  FillParams p{e, half_of(e), problem.batch_inner,
               problem.m * problem.n * problem.batch_inner * problem.batch_outer};
  const int64_t blocks = (p.elements + kSmallKernelThreads - 1) / kSmallKernelThreads;
  return launch_small(fill_kernel, p, some_blocks(blocks), stream, "fill_kernel");
}

}  // namespace hopgemm
