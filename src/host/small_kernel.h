// The small kernels beside the product: how they are launched and loaded, how they read a matrix
// and how they round.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "host/device.h"
#include "host/status.h"
#include "kernel/params.h"

namespace hopgemm {

inline constexpr int kSmallKernelThreads = 256;

// What a 16-bit element of d, c and bias is.
inline DType half_of(const EpilogueParams& e) {
  DType half = DType::kBF16;
  for (const EpilogueMatrix* x : {&e.d, &e.c, &e.bias})
    if (x->data && x->dtype != DType::kF32) half = x->dtype;
  return half;
}

// One element as fp32; `half`: what a 16-bit one is.
__device__ inline float element(const EpilogueMatrix& x, DType half, int64_t index) {
  if (x.dtype == DType::kF32) return static_cast<const float*>(x.data)[index];
  if (half == DType::kBF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[index]);
  return __half2float(static_cast<const __half*>(x.data)[index]);
}

// To nearest even.
__device__ inline uint16_t round_to(DType half, float value) {
  return half == DType::kBF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
                              : __half_as_ushort(__float2half_rn(value));
}

// First in every one, as for the product's kernel. HAZARD: before it what is read may not be written yet, nor
// the last reader of what is written be done.
__device__ inline void wait_for_the_kernel_before() {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may set itself up meanwhile
}

template <class Params>
Status launch_small(void (*kernel)(Params), Params& params, int blocks, void* stream, const char* name) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;  // pairs with cudaGridDependencySynchronize
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks), config.blockDim = dim3(kSmallKernelThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early, config.numAttrs = 1;
  void* args[] = {&params};
  const cudaError_t e = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), args);
  if (e == cudaSuccess) return {};
  cudaGetLastError();
  return cuda_failure(e, name);
}

// Loads a kernel onto the current device.
inline Status load_small(const void* kernel) {
  cudaFuncAttributes attributes;
  const cudaError_t e = cudaFuncGetAttributes(&attributes, kernel);
  if (e == cudaSuccess) return {};
  cudaGetLastError();
  return cuda_failure(e, "cudaFuncGetAttributes");
}

}  // namespace hopgemm
