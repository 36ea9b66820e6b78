// A call on its way to a rung: checked, its tensor maps encoded, launched.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "host/device.h"
#include "host/make_params.h"
#include "host/tensor_map.h"
#include "ladder/problem.h"
#include "ladder/roles.h"

namespace hopgemm::ladder {
namespace {

Status check(cudaError_t e, const char* what) {
  if (e != cudaSuccess) cudaGetLastError();  // ours to report, not to leave behind
  return e == cudaSuccess ? Status{} : cuda_failure(e, what);
}

Status validate(const Rung& r, const Call& c) {
  const struct {
    const char* name;
    int size, step;
  } sides[] = {{"M", c.m, r.step_m}, {"N", c.n, r.step_n}, {"K", c.k, r.step_k}};
  for (const auto& s : sides)
    if (s.size <= 0 || s.size % s.step != 0)
      return failure(
          Code::kInvalidArgument,
          "hopgemm ladder: %s is %d; rung %s takes multiples of %d (M %d, N %d, K %d). Take such a "
          "size, or rung 12, the product, which takes any",
          s.name, s.size, r.name, s.step, r.step_m, r.step_n, r.step_k);
  if (!(c.dtype == DType::kF16 ? r.fp16 : c.dtype == DType::kBF16 && r.bf16))
    return failure(Code::kInvalidArgument, "hopgemm ladder: rung %s takes %s, not %s", r.name,
                   r.bf16 ? "bfloat16 and float16" : "float16 alone", name_of(c.dtype));
  for (const void* p : {c.a, c.b, static_cast<const void*>(c.d)})
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
      return failure(Code::kInvalidArgument,
                     "hopgemm ladder: %p is not 16-byte aligned, which the copies need. Take a fresh tensor",
                     p);
  int device;
  HOPGEMM_TRY(check(cudaGetDevice(&device), "cudaGetDevice"));
  DeviceFacts facts;
  HOPGEMM_TRY(device_facts(device, facts));
  if (facts.major != 9)
    return failure(Code::kUnsupportedDevice,
                   "hopgemm ladder: GPU %d has compute capability %d.%d; the rungs need 9.0", device,
                   facts.major, facts.minor);
  return {};
}

// CTAs of the kernel that the device holds at once.
Status resident_ctas(const void* kernel, cudaLaunchConfig_t launch, int cluster, int& ctas) {
  int clusters = 0;
  launch.gridDim = dim3(cluster);
  HOPGEMM_TRY(
      check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch), "cudaOccupancyMaxActiveClusters"));
  if (clusters == 0)
    return failure(Code::kUnsupportedDevice, "hopgemm ladder: no CTA of this rung fits on the GPU");
  ctas = clusters * cluster;
  return {};
}

}  // namespace

Status run(const Rung& rung, const Call& call, void* stream) {
  HOPGEMM_TRY(validate(rung, call));
  return rung.launch(rung, call, stream);
}

Status launch_tma(const Rung& rung, const Call& call, void* stream, void* argument) {
  Config config{rung.config, rung.schedule};
  config.kernel.dtype = call.dtype;
  const NormalProblem problem = normal_problem(call);
  GemmParams<CUtensorMap> params = make_params<CUtensorMap>(problem, config);
  HOPGEMM_TRY(encode_tensor_maps(problem, tensor_map_config(config.kernel), params.a, params.b, params.d));

  const void* kernel = rung.kernels[static_cast<int>(call.dtype)];
  const int cluster = cluster_size(config.kernel), bytes = smem_bytes(config.kernel);
  HOPGEMM_TRY(
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), rung.name));
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.blockDim = dim3(rung.threads), launch.dynamicSmemBytes = bytes;
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = &attribute, launch.numAttrs = 1;
  int ctas = params.grid.num_blocks * cluster;
  if (rung.persistent) {
    int resident = 0;
    HOPGEMM_TRY(resident_ctas(kernel, launch, cluster, resident));
    if (rung.schedule.max_ctas > 0) resident = std::min(resident, rung.schedule.max_ctas);
    ctas = std::min(ctas, resident);
  }
  launch.gridDim = dim3(ctas);
  void* arguments[] = {&params, &argument};
  return check(cudaLaunchKernelExC(&launch, kernel, arguments), rung.name);
}

}  // namespace hopgemm::ladder
