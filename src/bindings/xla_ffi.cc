// The XLA custom call "hopgemm.matmul.v1". Fills a Problem and enqueues it: never synchronizes, keeps no
// state, and allocates nothing while a command buffer is recorded, so that XLA may record the call, the first
// one of the process included.
#include <cuda_runtime_api.h>

#include <optional>

#include "api/gemm.h"
#include "bindings/cuda_runtime.h"
#include "bindings/xla_call.h"

// HAZARD: built with newer headers the handler would stop every older jax from starting any backend.
static_assert(XLA_FFI_API_MAJOR == 0 && XLA_FFI_API_MINOR == 3, "build with the headers of jaxlib 0.10.2");

namespace hopgemm::xla_call {
namespace {

// XLA may hand over a slice in place, whose address asks for a copy that nobody could plan for. It records no
// such call, so that memory which is XLA's again when this returns will do: what uses it next is behind us in
// the stream.
bool borrow_workspace(Call& call, const Plan& plan, ffi::ScratchAllocator& scratch, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone)
    return false;
  constexpr size_t kAlignment = 16;
  const std::optional<void*> memory = scratch.Allocate(static_cast<size_t>(plan.workspace_bytes), kAlignment);
  if (memory) call.workspace = *memory;
  return memory.has_value();
}

ffi::Error matmul(cudaStream_t stream, int32_t device, ffi::ScratchAllocator scratch, std::string_view spec,
                  std::string_view epilogue, std::string_view config, float alpha, float beta,
                  int64_t sm_limit, bool batch_invariant, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const Attributes attributes{spec, epilogue, config, alpha, beta, sm_limit, batch_invariant};
  Call call;
  if (Status s = read_call(attributes, args, rets, call); !s.ok()) return error_of(s);
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return error_of(guard.status());
  DeviceFacts facts;
  if (Status s = device_facts(device, facts); !s.ok()) return error_of(s);
  Plan plan;
  if (Status s = plan_call(call, config, facts, plan); !s.ok()) return error_of(s);
  if (plan.workspace_bytes > call.workspace_bytes && !borrow_workspace(call, plan, scratch, stream))
    return error_of(too_little_workspace(call, plan));
  return error_of(gemm(call.problem, plan, call.workspace, stream));
}

}  // namespace
}  // namespace hopgemm::xla_call

extern "C" HOPGEMM_API XLA_FFI_Error* hopgemm_xla_matmul(XLA_FFI_CallFrame* frame) {
  namespace ffi = ::xla::ffi;
  namespace xla_call = hopgemm::xla_call;
  static const auto* handler = xla_call::bind_call(ffi::Ffi::Bind()
                                                       .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                                       .Ctx<ffi::DeviceOrdinal>()
                                                       .Ctx<ffi::ScratchAllocator>())
                                   .To(xla_call::matmul, {ffi::Traits::kCmdBufferCompatible})
                                   .release();
  return handler->Call(frame);
}
