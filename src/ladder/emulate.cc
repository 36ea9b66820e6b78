// The rungs behind the C ABI of libhopgemm_emulator.so, as bindings/emulate.h for the product: only pointers
// and 64-bit integers.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "hw/emulated/launch.h"
#include "ladder/emulated_rungs.h"
#include "ladder/problem.h"

using namespace hopgemm;

extern "C" {

// Names of the rungs that can be emulated; nullptr past the end.
HOPGEMM_API const char* hopgemm_emulated_rung(int64_t index) {
  return index >= 0 && index < std::ssize(ladder::kEmulatedRungs) ? ladder::kEmulatedRungs[index].name
                                                                  : nullptr;
}

// d (m, n) = a (m, k) @ b (n, k)^T on host memory, all dense. `dtype` as in api/gemm.h; the sizes are
// multiples of the rung's steps. Returns 0, or 1 with what is wrong in `message`.
HOPGEMM_API int64_t hopgemm_emulate_rung(int64_t index, int64_t dtype, int64_t m, int64_t n, int64_t k,
                                         const void* a, const void* b, void* d, int64_t sm_count,
                                         uint64_t seed, char* message, int64_t message_bytes) {
  const ladder::EmulatedRung& rung = ladder::kEmulatedRungs[index];
  Config config{rung.config, rung.schedule};
  config.kernel.dtype = static_cast<DType>(dtype);
  const ladder::Call call{config.kernel.dtype, a, b, d, static_cast<int>(m), static_cast<int>(n),
                          static_cast<int>(k)};
  const int cluster = cluster_size(config.kernel), blocks = make_tile_grid(config, m, n, k, 1, 1).num_blocks;
  const int pool = std::max(1, static_cast<int>(sm_count) / cluster);
  emulated::Launch launch = emulated::make_launch(
      ladder::normal_problem(call), config, (rung.persistent ? std::min(blocks, pool) : blocks) * cluster);
  launch.seed = seed;
  const emulated::Result result = rung.run(launch);
  std::snprintf(message, static_cast<size_t>(message_bytes), "%s", result.failure.c_str());
  return !result.ok();
}

}  // extern "C"
