// gemm: normalize, pack, encode, launch. Enqueues on the caller's stream; allocates nothing, waits for
// nothing.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "host/config_name.h"
#include "host/device.h"
#include "host/make_params.h"
#include "host/normal_form.h"
#include "host/pack.h"
#include "host/select.h"
#include "host/swap.h"
#include "host/tail.h"
#include "host/tensor_map.h"

namespace hopgemm {
namespace {

Status launch(const Instance& instance, const GemmParams<CUtensorMap>& params, int grid,
              cudaStream_t stream) {
  const int cluster = cluster_size(instance.config, params.grid.split);
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2];
  attributes[0].id =
      cudaLaunchAttributeProgrammaticStreamSerialization;  // pairs with griddepcontrol_wait in the kernel
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  config.gridDim = dim3(grid), config.blockDim = dim3(kNumThreads), config.stream = stream;
  config.dynamicSmemBytes = smem_bytes(instance.config);
  config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : 1;
  void* args[] = {const_cast<GemmParams<CUtensorMap>*>(&params)};
  const cudaError_t e = cudaLaunchKernelExC(&config, instance.kernel(), args);
  if (e == cudaSuccess) return {};
  cudaGetLastError();
  return cuda_failure(e, instance.name);
}

// One launch, or one after the other as the schedule has them.
Status launch_all(const Instance& instance, const Schedule& schedule, GemmParams<CUtensorMap>& params,
                  int grid, cudaStream_t stream) {
  const int cluster = cluster_size(instance.config, schedule.split);
  const Launches launches(params.grid, schedule.waves, grid / cluster);
  for (int i = 0; i < launches.count(); ++i) {
    params.grid = launches.grid(i);
    HOPGEMM_TRY(launch(instance, params, launches.clusters(i) * cluster, stream));
  }
  return {};
}

Status stale_plan() {
  return failure(Code::kInvalidArgument,
                 "hopgemm: the plan was made for other shapes, strides or alignments. Call make_plan again");
}

}  // namespace

Status gemm(const Problem& problem, const Plan& plan, void* workspace, void* stream) {
  NormalProblem p;
  HOPGEMM_TRY(normalize(problem, p));
  if (p.path != plan.path) return stale_plan();
  if (p.path == Path::kEmpty) return {};
  if (p.path == Path::kFill) return fill(p, stream);
  if (plan.workspace_bytes > 0 && (!workspace || reinterpret_cast<uintptr_t>(workspace) % 16 != 0))
    return failure(Code::kInvalidArgument,
                   "hopgemm: the workspace is %p; %lld bytes, 16-byte aligned, are needed", workspace,
                   static_cast<long long>(plan.workspace_bytes));
  const Instance* instance;
  Schedule schedule;
  if (!parse_config(plan.config, instance, schedule))
    return failure(Code::kInvalidArgument, "hopgemm: config '%s' is unknown. Call make_plan again",
                   plan.config);
  const KernelConfig& asked = instance->config;
  if (!fits(asked, p, problem.a.dtype))
    return failure(Code::kInvalidArgument,
                   "hopgemm: the plan's config '%s' does not fit. Call make_plan again", plan.config);
  if (!is_valid_split(asked, schedule.split, ceil_div(p.k, kTileK)))
    return failure(Code::kInvalidArgument,
                   "hopgemm: the plan's config '%s' splits a K of %lld too often. Call make_plan again",
                   plan.config, static_cast<long long>(p.k));
  if (!is_valid_tail(asked, schedule, count_blocks(asked, p), ceil_div(p.k, kTileK))) return stale_plan();
  int device, max_clusters;
  if (cudaError_t e = cudaGetDevice(&device)) {
    cudaGetLastError();
    return cuda_failure(e, "cudaGetDevice");
  }
  HOPGEMM_TRY(prepare(device, *instance, schedule.split, max_clusters));
  if (max_clusters == 0) {  // none fits beside what else is on the device
    instance = find_without_cluster(asked);
    schedule.split = 1, schedule.tail = schedule.ranges = 0;
    if (instance) HOPGEMM_TRY(prepare(device, *instance, schedule.split, max_clusters));
    if (max_clusters == 0)
      return failure(Code::kUnsupportedDevice, "hopgemm: no CTA of config '%s' fits on GPU %d", plan.config,
                     device);
  }
  const KernelConfig& c = instance->config;
  swap_for(c, p);
  GemmParams<CUtensorMap> params = make_params<CUtensorMap>(p, {c, schedule});
  const TileGrid walk = params.grid;
  const int64_t packed = packed_bytes(p);
  if (packed + sums_bytes(c, walk) > plan.workspace_bytes) return stale_plan();
  HOPGEMM_TRY(pack_operands(p, workspace, stream));
  HOPGEMM_TRY(encode_tensor_maps(p, c, params.a, params.b, params.d));
  void* const sums = static_cast<char*>(workspace) + packed;
  if (walk.ranges > 0) HOPGEMM_TRY(encode_sums_map(c, sums, sums_rows(c, walk), params.sums));
  const int resident = max_clusters * cluster_size(c, schedule.split);
  const int grid = std::min(plan.grid, resident);
  params.leaves_room = problem.sm_limit == 0 && 2 * grid <= resident;
  HOPGEMM_TRY(launch_all(*instance, schedule, params, grid, static_cast<cudaStream_t>(stream)));
  return walk.ranges > 0 ? add_tail(p, c, walk, sums, stream) : Status{};
}

}  // namespace hopgemm
