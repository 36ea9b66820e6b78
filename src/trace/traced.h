// One product by a traced kernel on a GPU.
#pragma once
#include <string>
#include <vector>

#include "api/gemm.h"
#include "config/config.h"
#include "trace/record.h"

namespace hopgemm::trace {

// The kernels of which a traced build is compiled: the cooperative one that large products run
// on, and the ping-pong arrangement.
inline constexpr KernelConfig kTracedCooperative{
    DType::kBF16, Major::kK, Major::kK, 128, 256, 2, 1, 4, Arrangement::kCooperative};
inline constexpr KernelConfig kTracedPingpong{DType::kBF16,          Major::kK, Major::kK, 128, 128, 2, 1, 6,
                                              Arrangement::kPingpong};
const void* address_of_cooperative();
const void* address_of_pingpong();

struct GpuTrace {
  int num_ctas = 0, capacity = 0;  // records that a role may have
  float milliseconds = 0;  // of the traced launch
  std::vector<Record> records;  // [num_ctas][kNumRoles][capacity]
  std::vector<uint32_t> counts;  // [num_ctas][kNumRoles]: notes that were made; those past capacity are lost
  std::vector<ClockPair> clocks;  // [num_ctas][2]: at the start, at the end
  std::vector<uint32_t> sms;  // [num_ctas]
};

// a (m, k) @ b (n, k).T of random bf16 by `config` (an instance and its schedule), on the current device, a
// few times; the last is kept. Allocates, waits.
Status run_traced(int64_t m, int64_t n, int64_t k, const char* config, int capacity, GpuTrace& trace);

}  // namespace hopgemm::trace
