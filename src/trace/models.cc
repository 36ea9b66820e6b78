// The kernel table of _trace_core, for the host code that is linked into it: the rows of instances.def with
// both operands K-contiguous, less the swapped kernels. A kernel without a traced build has no address.
#include "trace/models.h"

#include "config/instances.h"
#include "trace/model_hw.h"
#include "trace/traced.h"

namespace hopgemm {
namespace trace {
namespace {

const void* not_traced() { return nullptr; }

using Address = const void* (*)();
constexpr Address address_of(const KernelConfig& c) {
  if (c == kTracedCooperative) return &address_of_cooperative;
  if (c == kTracedPingpong) return &address_of_pingpong;
  return &not_traced;
}

}  // namespace
}  // namespace trace

#define HOPGEMM_NAME_kCooperative "coop"
#define HOPGEMM_NAME_kPingpong "pingpong"
#define HOPGEMM_KERNEL(dtype, tile_m, tile_n, cluster_m, cluster_n, stages, arrangement) \
  KernelConfig {                                                                         \
    DType::dtype, Major::kK, Major::kK, tile_m, tile_n, cluster_m, cluster_n, stages,    \
        Arrangement::arrangement                                                         \
  }
#define HOPGEMM_ROW(d, dtype, tile_m, tile_n, cluster_m, cluster_n, stages, arrangement) \
  {d "_kk_" #tile_m "x" #tile_n "x64_c" #cluster_m "x" #cluster_n "_s" #stages           \
     "_" HOPGEMM_NAME_##arrangement,                                                     \
   HOPGEMM_KERNEL(dtype, tile_m, tile_n, cluster_m, cluster_n, stages, arrangement),     \
   trace::address_of(HOPGEMM_KERNEL(dtype, tile_m, tile_n, cluster_m, cluster_n, stages, arrangement))},
#define HOPGEMM_SWAPPED(...)
#define HOPGEMM_TILE(layouts, ...) HOPGEMM_##layouts(__VA_ARGS__)
#define HOPGEMM_kk_kn_mk_mn(...) HOPGEMM_kk(__VA_ARGS__)
#define HOPGEMM_kk_kn(...) HOPGEMM_kk(__VA_ARGS__)
#define HOPGEMM_kk_mk(...) HOPGEMM_kk(__VA_ARGS__)
#define HOPGEMM_kn_mn(...)
#define HOPGEMM_kk(...) HOPGEMM_ROW("bf16", kBF16, __VA_ARGS__) HOPGEMM_ROW("f16", kF16, __VA_ARGS__)

const Instance kInstances[] = {
#include "config/instances.def"
};
const int kNumInstances = sizeof kInstances / sizeof kInstances[0];

#undef HOPGEMM_kk
// Time does not depend on the element type: one model for both rows of a shape.
#define HOPGEMM_kk(...) &trace::run_model<HOPGEMM_KERNEL(kBF16, __VA_ARGS__)>,

trace::RunModel trace::model_of(int index) {
  static constexpr RunModel kModels[] = {
#include "config/instances.def"
  };
  static_assert(sizeof kModels / sizeof kModels[0] * 2 == sizeof kInstances / sizeof kInstances[0]);
  return kModels[index / 2];
}

}  // namespace hopgemm
