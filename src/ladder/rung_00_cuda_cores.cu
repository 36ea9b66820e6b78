// Rung 0: CUDA cores. Each of 256 threads holds 8x8 sums of a 128x128 tile in registers, so that 16 numbers
// from shared memory feed 64 multiply-adds; operands are converted to fp32 on their way into shared memory,
// two buffers of it, and the next step's are loaded from memory meanwhile. The best there is without tensor
// cores.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "host/device.h"
#include "ladder/rung.h"

namespace hopgemm::ladder {
namespace {

constexpr int kTile = 128, kStepK = 16, kThreads = 256;
constexpr int kPerLoad = 8;       // elements of one 16-byte load
constexpr int kPitch = kTile + 4;  // floats from one K to the next

struct Buffer {
  float a[kStepK][kPitch], b[kStepK][kPitch];  // K outermost: a thread reads its rows as float4
};

__device__ __forceinline__ float2 to_float2(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ float2 to_float2(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ void round_to(float low, float high, __nv_bfloat162& x) {
  x = __floats2bfloat162_rn(low, high);
}
__device__ __forceinline__ void round_to(float low, float high, __half2& x) {
  x = __floats2half2_rn(low, high);
}

// Eight K elements of one row, as a column of the transposed buffer.
template <class Pair>
__device__ __forceinline__ void put(float (*buffer)[kPitch], int row, int k, const uint4& eight) {
  const Pair* pairs = reinterpret_cast<const Pair*>(&eight);
#pragma unroll
  for (int i = 0; i < kPerLoad / 2; ++i) {
    const float2 f = to_float2(pairs[i]);
    buffer[k + 2 * i][row] = f.x;
    buffer[k + 2 * i + 1][row] = f.y;
  }
}

// A thread's 8 rows (or columns) are 4 at 4 * index and 4 at 64 + 4 * index.
__device__ __forceinline__ void get(const float* k_row, int index, float (&x)[8]) {
  *reinterpret_cast<float4*>(&x[0]) = *reinterpret_cast<const float4*>(k_row + 4 * index);
  *reinterpret_cast<float4*>(&x[4]) = *reinterpret_cast<const float4*>(k_row + kTile / 2 + 4 * index);
}

template <class Pair> __global__ void __launch_bounds__(kThreads, 2)
    cuda_cores(const uint16_t* a, const uint16_t* b, uint16_t* d, int64_t n, int64_t k) {
  __shared__ __align__(16) Buffer buffers[2];
  const int thread = threadIdx.x, row = thread % kTile, k_half = thread / kTile * kPerLoad;
  const int across = thread % 16, down = thread / 16;
  const int64_t m0 = int64_t{blockIdx.y} * kTile, n0 = int64_t{blockIdx.x} * kTile;
  const uint16_t* from_a = a + (m0 + row) * k + k_half;
  const uint16_t* from_b = b + (n0 + row) * k + k_half;
  uint4 next_a = *reinterpret_cast<const uint4*>(from_a), next_b = *reinterpret_cast<const uint4*>(from_b);
  float sums[8][8] = {};
  for (int64_t done = 0; done < k; done += kStepK) {
    Buffer& buffer = buffers[done / kStepK % 2];
    put<Pair>(buffer.a, row, k_half, next_a);
    put<Pair>(buffer.b, row, k_half, next_b);
    __syncthreads();  // one a step: the other buffer's readers have passed the last one
    if (done + kStepK < k) {
      next_a = *reinterpret_cast<const uint4*>(from_a += kStepK);
      next_b = *reinterpret_cast<const uint4*>(from_b += kStepK);
    }
#pragma unroll
    for (int i = 0; i < kStepK; ++i) {
      float x[8], y[8];
      get(buffer.a[i], down, x);
      get(buffer.b[i], across, y);
#pragma unroll
      for (int r = 0; r < 8; ++r) {
#pragma unroll
        for (int c = 0; c < 8; ++c) sums[r][c] = fmaf(x[r], y[c], sums[r][c]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    uint16_t* const to = d + (m0 + r / 4 * (kTile / 2) + 4 * down + r % 4) * n + n0 + 4 * across;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Pair pairs[2];
      round_to(sums[r][4 * half], sums[r][4 * half + 1], pairs[0]);
      round_to(sums[r][4 * half + 2], sums[r][4 * half + 3], pairs[1]);
      *reinterpret_cast<uint2*>(to + half * (kTile / 2)) = *reinterpret_cast<const uint2*>(pairs);
    }
  }
}

Status launch(const Rung&, const Call& c, void* stream) {
  const auto kernel = c.dtype == DType::kF16 ? &cuda_cores<__half2> : &cuda_cores<__nv_bfloat162>;
  kernel<<<dim3(c.n / kTile, c.m / kTile), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint16_t*>(c.a), static_cast<const uint16_t*>(c.b), static_cast<uint16_t*>(c.d), c.n,
      c.k);
  const cudaError_t e = cudaGetLastError();
  return e ? cuda_failure(e, "rung 0") : Status{};
}

}  // namespace

extern const Rung kRung00{"0", "CUDA cores, 8x8 sums a thread", kTile, kTile, kStepK, true, true, &launch};

}  // namespace hopgemm::ladder
