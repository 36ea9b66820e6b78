// The C ABI of libhopgemm_emulator.so: the product on host memory, by the kernels' own source on the emulated
// machine. Only pointers, doubles and 64-bit integers, so that ctypes has no padding to guess.
#pragma once
#include <cstdint>

#include "api/gemm.h"

extern "C" {

struct hopgemm_emulated_matrix {
  void* data;  // nullptr: absent
  int64_t dtype, row_stride, col_stride;  // as in api/gemm.h; of a bias, col_stride and batch_stride
  int64_t batch_stride[hopgemm::kMaxBatchDims];
};

struct hopgemm_emulation {
  int64_t m, n, k, batch_dims, batch[hopgemm::kMaxBatchDims];
  hopgemm_emulated_matrix a, b, c, d, bias;
  double alpha, beta;
  const char* config;  // "": what the selector takes
  int64_t sm_count;  // of the emulated GPU
  uint64_t seed;
  // Told of every event, unless nullptr. `where`: a stage, a slot, or a barrier's offset.
  void (*on_event)(int64_t step, int64_t cta, const char* role, const char* what, int64_t where,
                   int64_t value);
  // Out.
  int64_t code;  // a hopgemm::Code, or kEmulationFailed
  int64_t steps;  // decisions of the scheduler
  char config_used[hopgemm::kMaxConfigName];
  char message[4096 - hopgemm::kMaxConfigName];
};

HOPGEMM_API void hopgemm_emulate(hopgemm_emulation* emulation);
HOPGEMM_API const char* hopgemm_emulated_config(int64_t index);  // nullptr past the end

}  // extern "C"

namespace hopgemm {
inline constexpr int64_t kEmulationFailed = -1;  // the kernel broke a rule: `message` says which
}
