// libhopgemm_emulator.so: every instance of instances.def on EmulatedHw, behind the host's own normal form
// and selector.
#include "bindings/emulate.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "host/config_name.h"
#include "host/normal_form.h"
#include "host/select.h"
#include "host/status.h"
#include "host/swap.h"
#include "host/tail.h"
#include "hw/emulated/hw.h"
#include "hw/emulated/launch.h"

namespace hopgemm {
namespace {

using Kernel = emulated::Result (*)(const emulated::Launch&);

template <KernelConfig kConfig> const void* kernel() {
  const Kernel k = &emulate<EmulatedHw<kConfig>>;
  return reinterpret_cast<const void*>(k);
}

}  // namespace

// The names are those that generate_instances.py writes for the GPU. Role loops know nothing of the element
// type, and the emulated machine reads it from the launch: half the kernels to compile.
#define HOPGEMM_NAME_kCooperative "coop"
#define HOPGEMM_NAME_kPingpong "pingpong"
#define HOPGEMM_INSTANCE(name, dtype, ...) \
  {name, KernelConfig{DType::dtype, __VA_ARGS__}, &kernel<KernelConfig{DType::kBF16, __VA_ARGS__}>},
// Each row for both types and its layouts; `row` is one of the two macros at the end.
#define HOPGEMM_TILE(layouts, ...) HOPGEMM_BOTH(HOPGEMM_##layouts, HOPGEMM_TILED, __VA_ARGS__)
#define HOPGEMM_SWAPPED(layouts, ...) HOPGEMM_BOTH(HOPGEMM_##layouts, HOPGEMM_SWAP, __VA_ARGS__)
#define HOPGEMM_BOTH(layouts, row, ...) \
  layouts(row, "bf16", kBF16, __VA_ARGS__) layouts(row, "f16", kF16, __VA_ARGS__)
#define HOPGEMM_kk_kn_mk_mn(...) HOPGEMM_kk_kn(__VA_ARGS__) HOPGEMM_mk(__VA_ARGS__) HOPGEMM_mn(__VA_ARGS__)
#define HOPGEMM_kk_kn(...) HOPGEMM_kk(__VA_ARGS__) HOPGEMM_kn(__VA_ARGS__)
#define HOPGEMM_kk_mk(...) HOPGEMM_kk(__VA_ARGS__) HOPGEMM_mk(__VA_ARGS__)
#define HOPGEMM_kn_mn(...) HOPGEMM_kn(__VA_ARGS__) HOPGEMM_mn(__VA_ARGS__)
#define HOPGEMM_kk(row, d, dtype, ...) row(d, dtype, "kk", kK, kK, __VA_ARGS__)
#define HOPGEMM_kn(row, d, dtype, ...) row(d, dtype, "kn", kK, kMN, __VA_ARGS__)
#define HOPGEMM_mk(row, d, dtype, ...) row(d, dtype, "mk", kMN, kK, __VA_ARGS__)
#define HOPGEMM_mn(row, d, dtype, ...) row(d, dtype, "mn", kMN, kMN, __VA_ARGS__)
#define HOPGEMM_TILED(d, dtype, l, a, b, tile_m, tile_n, cluster_m, cluster_n, stages, arrangement) \
  HOPGEMM_INSTANCE(d "_" l "_" #tile_m "x" #tile_n "x64_c" #cluster_m "x" #cluster_n "_s" #stages   \
                     "_" HOPGEMM_NAME_##arrangement,                                                \
                   dtype, Major::a, Major::b, tile_m, tile_n, cluster_m, cluster_n, stages,         \
                   Arrangement::arrangement)
#define HOPGEMM_SWAP(d, dtype, l, a, b, tile_m, tile_n, cluster_m, cluster_n, stages)                      \
  HOPGEMM_INSTANCE(d "_" l "_" #tile_n "x" #tile_m "x64_c" #cluster_n "x" #cluster_m "_s" #stages "_swap", \
                   dtype, Major::b, Major::a, tile_m, tile_n, cluster_m, cluster_n, stages,                \
                   Arrangement::kSwapped)

const Instance kInstances[] = {
#include "config/instances.def"
};
const int kNumInstances = std::size(kInstances);

namespace {

Matrix matrix_of(const hopgemm_emulated_matrix& x) {
  Matrix m{x.data, static_cast<DType>(x.dtype), x.row_stride, x.col_stride, {}};
  std::copy_n(x.batch_stride, kMaxBatchDims, m.batch_stride);
  return m;
}

Problem problem_of(const hopgemm_emulation& e) {
  Problem p;
  p.m = e.m, p.n = e.n, p.k = e.k;
  p.batch_dims = static_cast<int>(e.batch_dims);
  std::copy_n(e.batch, kMaxBatchDims, p.batch);
  p.a = matrix_of(e.a), p.b = matrix_of(e.b), p.c = matrix_of(e.c), p.d = matrix_of(e.d);
  p.bias.data = e.bias.data, p.bias.dtype = static_cast<DType>(e.bias.dtype),
  p.bias.stride = e.bias.col_stride;
  std::copy_n(e.bias.batch_stride, kMaxBatchDims, p.bias.batch_stride);
  p.alpha = static_cast<float>(e.alpha), p.beta = static_cast<float>(e.beta);
  return p;
}

DeviceFacts emulated_facts(const hopgemm_emulation& e) {
  DeviceFacts facts;  // an H200
  facts.sm_count = static_cast<int>(e.sm_count);
  return facts;
}

// What went wrong; steps are counted on from the last launch's.
std::string run_launch(const Instance& instance, const emulated::Launch& launch, hopgemm_emulation& e) {
  const emulated::Result result = reinterpret_cast<Kernel>(const_cast<void*>(instance.kernel()))(launch);
  for (const emulated::Event& x : result.events)
    e.on_event(e.steps + x.step, x.cta, x.role, x.what, x.where, x.value);
  e.steps += result.steps;
  return result.failure;
}

Status run(hopgemm_emulation& e, std::string& broken) {
  const Problem problem = problem_of(e);
  Plan plan;
  HOPGEMM_TRY(make_plan(problem, e.config, emulated_facts(e), plan));
  if (plan.path == Path::kEmpty) return {};
  if (plan.path == Path::kFill)
    return failure(
        Code::kInvalidArgument,
        "hopgemm.emulate: k or alpha is 0, so that no product is computed. Give it one to compute");
  std::memcpy(e.config_used, plan.config, sizeof e.config_used);
  NormalProblem normal;
  HOPGEMM_TRY(normalize(problem, normal));
  std::vector<uint64_t> workspace(plan.workspace_bytes / 8 + 1, UINT64_MAX);  // what pack() leaves out is NaN
  emulated::pack_operands(normal, workspace.data());
  const Instance* instance;
  Schedule schedule;
  parse_config(plan.config, instance, schedule);
  swap_for(instance->config, normal);
  float* const sums = reinterpret_cast<float*>(workspace.data()) + packed_bytes(normal) / sizeof(float);
  emulated::Launch launch = emulated::make_launch(normal, {instance->config, schedule}, plan.grid,
                                                  schedule.tail > 0 ? sums : nullptr);
  launch.seed = e.seed, launch.log = e.on_event != nullptr;
  const TileGrid walk = launch.params.grid;
  const int cluster = cluster_size(instance->config, schedule.split);
  const Launches launches(walk, schedule.waves, plan.grid / cluster);
  for (int i = 0; i < launches.count() && broken.empty(); ++i) {
    launch.params.grid = launches.grid(i);
    launch.num_ctas = launches.clusters(i) * cluster;
    broken = run_launch(*instance, launch, e);
  }
  if (broken.empty() && schedule.tail > 0) emulated::add_tail(normal, instance->config, walk, sums);
  return {};
}

}  // namespace
}  // namespace hopgemm

void hopgemm_emulate(hopgemm_emulation* e) {
  e->code = 0, e->steps = 0;
  e->config_used[0] = e->message[0] = '\0';
  std::string broken;
  const hopgemm::Status status = hopgemm::run(*e, broken);
  if (!broken.empty()) e->code = hopgemm::kEmulationFailed;
  else e->code = static_cast<int64_t>(status.code);
  std::snprintf(e->message, sizeof e->message, "%s", broken.empty() ? status.message : broken.c_str());
}

const char* hopgemm_emulated_config(int64_t index) {
  return index >= 0 && index < hopgemm::kNumInstances ? hopgemm::kInstances[index].name : nullptr;
}
