// Rung 12: the product, through the library's own front door (api/gemm.h): its selector, its schedule,
// whatever it adds to rung 11 by now (docs/design.md). And a side rung: the product's ping-pong arrangement,
// in which each consumer has a tile of its own and one's epilogue runs under the other's math.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "host/device.h"
#include "ladder/rung.h"

namespace hopgemm::ladder {
namespace {

Status launch(const Call& c, const char* config, void* stream) {
  Problem p;
  p.m = c.m, p.n = c.n, p.k = c.k;
  p.a = {c.a, c.dtype, c.k, 1, {}};
  p.b = {c.b, c.dtype, 1, c.k, {}};
  p.d = {c.d, c.dtype, c.n, 1, {}};
  int device;
  if (const cudaError_t e = cudaGetDevice(&device)) {
    cudaGetLastError();
    return cuda_failure(e, "cudaGetDevice");
  }
  DeviceFacts facts;
  HOPGEMM_TRY(device_facts(device, facts));
  Plan plan;
  HOPGEMM_TRY(make_plan(p, config, facts, plan));
  return gemm(p, plan, nullptr, stream);
}

Status launch_product(const Rung&, const Call& c, void* stream) { return launch(c, "", stream); }

Status launch_pingpong(const Rung&, const Call& c, void* stream) {
  char config[kMaxConfigName];
  std::snprintf(config, sizeof config, "%s_kk_128x128x64_c2x1_s6_pingpong",
                c.dtype == DType::kF16 ? "f16" : "bf16");
  return launch(c, config, stream);
}

constexpr int kStep = 8;  // so that nothing is packed: TMA wants rows of multiples of 16 bytes

}  // namespace

extern const Rung kRung12{"12", "the product", 1, kStep, kStep, true, true, &launch_product, {}, {}, {},
                          0,    false};
extern const Rung kSidePingpong{"pingpong", "two tiles in turn, 128x128 (the product's)",
                                1,          kStep,
                                kStep,      true,
                                true,       &launch_pingpong,
                                {},         {},
                                {},         0,
                                false};

}  // namespace hopgemm::ladder
