// The XLA custom call "hopgemm.matmul.v1". Fills a Problem and enqueues it: never allocates, never
// synchronizes, keeps no state, so that XLA may record the call in a command buffer, the first call of the
// process included.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "api/gemm.h"
#include "bindings/cuda_runtime.h"
#include "bindings/xla_call.h"

// HAZARD: built with newer headers the handler would stop every older jax from starting any backend.
static_assert(XLA_FFI_API_MAJOR == 0 && XLA_FFI_API_MINOR == 3, "build with the headers of jaxlib 0.10.2");

namespace hopgemm::xla_call {
namespace {

// A program saved by another version may name a config that this one lacks: choose anew, and say so once.
Status plan_for(const Problem& p, const std::string& config, const DeviceFacts& facts, Plan& plan) {
  const bool named = !config.empty() && config != "auto";
  const Status first = make_plan(p, config.c_str(), facts, plan);
  if (first.ok() || !named || first.code != Code::kInvalidArgument) return first;
  if (Status s = make_plan(p, "auto", facts, plan); !s.ok()) return s;
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  if (!said.test_and_set())
    std::fprintf(stderr, "hopgemm: config '%s' of a compiled JAX program is not to be had (%s); using '%s'\n",
                 config.c_str(), first.message, plan.config);
  return {};
}

ffi::Error matmul(cudaStream_t stream, int32_t device, std::string_view spec, std::string_view epilogue,
                  std::string_view config, float alpha, float beta, int64_t sm_limit, bool batch_invariant,
                  ffi::RemainingArgs args, ffi::RemainingRets rets) {
  Call call;
  if (Status s = read_call(spec, epilogue, args, rets, call); !s.ok()) return error_of(s);
  Problem& p = call.problem;
  p.alpha = alpha, p.beta = beta, p.sm_limit = static_cast<int>(sm_limit),
  p.batch_invariant = batch_invariant;

  if (sm_limit < 0 || sm_limit > INT32_MAX)
    return error_of(invalid("hopgemm: sm_limit is %lld; it must be 0 (all SMs) or more",
                            static_cast<long long>(sm_limit)));
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return error_of(guard.status());
  DeviceFacts facts;
  if (Status s = device_facts(device, facts); !s.ok()) return error_of(s);
  Plan plan;
  if (Status s = plan_for(p, std::string(config), facts, plan); !s.ok()) return error_of(s);
  if (plan.workspace_bytes > call.workspace_bytes)
    return error_of(invalid(
        "hopgemm: config '%s' needs %lld bytes of workspace and the program has %lld: it was lowered for "
        "another GPU or by another version. Trace and lower it again",
        plan.config, static_cast<long long>(plan.workspace_bytes),
        static_cast<long long>(call.workspace_bytes)));
  return error_of(gemm(p, plan, call.workspace, stream));
}

}  // namespace
}  // namespace hopgemm::xla_call

extern "C" HOPGEMM_API XLA_FFI_Error* hopgemm_xla_matmul(XLA_FFI_CallFrame* frame) {
  namespace ffi = ::xla::ffi;
  static const auto* handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                   .Ctx<ffi::DeviceOrdinal>()
                                   .Attr<std::string_view>("spec")
                                   .Attr<std::string_view>("epilogue")
                                   .Attr<std::string_view>("config")
                                   .Attr<float>("alpha")
                                   .Attr<float>("beta")
                                   .Attr<int64_t>("sm_limit")
                                   .Attr<bool>("batch_invariant")
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .To(hopgemm::xla_call::matmul, {ffi::Traits::kCmdBufferCompatible})
                                   .release();
  return handler->Call(frame);
}
