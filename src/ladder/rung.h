// The ladder: kernels from CUDA cores to the product, each one idea further than the last. What a rung is,
// and how the host finds and runs it; the rungs themselves are in rung_*.cu. Every rung computes d (M, N) = a
// (M, K) @ b (N, K)^T, all three row-major and dense, 16-bit in and out, summed in fp32.
#pragma once
#include "config/config.h"
#include "host/status.h"

namespace hopgemm::ladder {

struct Call {
  DType dtype;
  const void *a, *b;
  void* d;
  int m, n, k;
};

struct Rung {
  const char* name;  // "3b": rung 3, second variant
  const char* idea;
  int step_m, step_n, step_k;  // M, N and K must be multiples of these
  bool bf16, fp16;
  Status (*launch)(const Rung&, const Call&, void* stream);
  // What launch_tma() needs; unused by rungs that launch themselves.
  const void* kernels[2];  // by DType: fp16, bf16
  KernelConfig config;  // its dtype is the call's
  Schedule schedule;
  int threads;
  bool persistent;  // a fixed pool of CTAs; else one CTA for each tile
};

extern const Rung* const kRungs[];
extern const int kNumRungs;

// Validates the call and enqueues the rung on `stream` of the current device. Waits for nothing.
Status run(const Rung& rung, const Call& call, void* stream);

// The launch of every rung that is fed by TMA. `argument`: a second kernel argument, for those that take one.
Status launch_tma(const Rung& rung, const Call& call, void* stream, void* argument);
inline Status launch_tma(const Rung& rung, const Call& call, void* stream) {
  return launch_tma(rung, call, stream, nullptr);
}

}  // namespace hopgemm::ladder
