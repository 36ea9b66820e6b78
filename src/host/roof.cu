#include "host/roof.h"

#include <cuda_bf16.h>

#include "host/device.h"
#include "hw/ptx/cluster.cuh"
#include "hw/ptx/wgmma.cuh"

namespace hopgemm {
namespace {

constexpr int kN = 256, kStages = 4;
constexpr int kStageBytes = (kNumConsumers * kMmaM + kN) * kTileK * 2;
constexpr int kSmemBytes = kStages * kStageBytes + kAtomBytes;
constexpr int kThreads = kNumConsumers * kWarpgroup;

// About normal, from a hash of the index: the sum of four uniforms.
__device__ float random_value(uint32_t i) {
  float sum = 0;
  for (uint32_t k = 0; k < 4; ++k) {
    uint32_t x = (i * 4 + k) * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    sum += static_cast<float>(x >> 8) * (1.0f / (1 << 24)) - 0.5f;
  }
  return sum * 1.7f;
}

__global__ void __launch_bounds__(kThreads, 1) roof_kernel(int stages, float* sink) {
  extern __shared__ uint8_t shared[];
  const uint32_t raw = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t smem = (raw + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
  __nv_bfloat16* data = reinterpret_cast<__nv_bfloat16*>(shared + (smem - raw));
  for (int i = threadIdx.x; i < kStages * kStageBytes / 2; i += kThreads)
    data[i] = __float2bfloat16(random_value(i));
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float acc[kN / 2];
  for (int i = 0; i < kN / 2; ++i) acc[i] = 0;
  const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  for (int s = 0; s < stages; ++s) {
    const uint32_t stage = smem + s % kStages * kStageBytes;
    const uint64_t a = ptx::smem_descriptor(stage + warpgroup * kMmaM * kSwizzleBytes, Major::kK);
    const uint64_t b = ptx::smem_descriptor(stage + kNumConsumers * kMmaM * kSwizzleBytes, Major::kK);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / kMmaK; ++step) {
      ptx::Wgmma<kN, DType::kBF16, 0, 0>::mma(acc, a + (step * kMmaK * 2 >> 4), b + (step * kMmaK * 2 >> 4),
                                              s > 0 || step > 0);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
  }
  ptx::wgmma_wait_group<0>();
  float sum = 0;
  for (int i = 0; i < kN / 2; ++i) {
    ptx::fence_register(acc[i]);
    sum += acc[i];
  }
  if (sum == 1.2345e-30f) *sink = sum;  // never: the products must be wanted
}

struct Events {
  cudaEvent_t start = nullptr, stop = nullptr;
  ~Events() {
    if (start) cudaEventDestroy(start);
    if (stop) cudaEventDestroy(stop);
  }
};

}  // namespace

Status measure_roof(double seconds, double& tflops) {
  if (!(seconds > 0))
    return failure(Code::kInvalidArgument, "hopgemm: seconds is %g; it must be above 0", seconds);
  auto check = [](cudaError_t e, const char* what) {
    if (e != cudaSuccess) cudaGetLastError();
    return e == cudaSuccess ? Status{} : cuda_failure(e, what);
  };
  int device = 0, sm_count = 0;
  HOPGEMM_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  HOPGEMM_TRY(check(cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device),
                    "cudaDeviceGetAttribute"));
  HOPGEMM_TRY(
      check(cudaFuncSetAttribute(roof_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes),
            "roof_kernel"));
  constexpr int kStagesPerLaunch = 40000;  // about 25 ms
  const double flop = 2.0 * kNumConsumers * kMmaM * kN * kTileK * kStagesPerLaunch * sm_count;
  Events events;
  HOPGEMM_TRY(check(cudaEventCreate(&events.start), "cudaEventCreate"));
  HOPGEMM_TRY(check(cudaEventCreate(&events.stop), "cudaEventCreate"));
  double elapsed_ms = 0, done = 0;
  while (elapsed_ms < seconds * 1e3) {
    cudaEventRecord(events.start);
    for (int i = 0; i < 4; ++i, done += flop)
      roof_kernel<<<sm_count, kThreads, kSmemBytes>>>(kStagesPerLaunch, nullptr);
    HOPGEMM_TRY(check(cudaGetLastError(), "roof_kernel"));
    cudaEventRecord(events.stop);
    HOPGEMM_TRY(check(cudaEventSynchronize(events.stop), "roof_kernel"));
    float ms = 0;
    cudaEventElapsedTime(&ms, events.start, events.stop);
    elapsed_ms += ms;
  }
  tflops = done / elapsed_ms / 1e9;
  return {};
}

}  // namespace hopgemm
