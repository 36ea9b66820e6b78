// One XLA FFI call frame as a Problem and its plan: what the CUDA handler and the tests' host handler have in
// common.
//
// Arguments: lhs, rhs, then c and bias as `epilogue` lists them. Results: d, then the workspace (u8) if the
// plan needs one. All arrays are row-major.
#pragma once
#include <atomic>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/xla_spec.h"
#include "xla/ffi/api/ffi.h"

namespace hopgemm::xla_call {

namespace ffi = ::xla::ffi;

// The attributes of a call, and `bind_call` to receive them.
// HAZARD: programs that users saved hold exactly these, and XLA refuses a call with others. Another list, or
// another meaning, needs another target name ("hopgemm.matmul.v2") beside this one.
struct Attributes {
  std::string_view spec, epilogue, config;
  float alpha = 1, beta = 0;
  int64_t sm_limit = 0;
  bool batch_invariant = false;
};

template <class Binding> auto bind_call(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Attr<std::string_view>("spec")
      .template Attr<std::string_view>("epilogue")
      .template Attr<std::string_view>("config")
      .template Attr<float>("alpha")
      .template Attr<float>("beta")
      .template Attr<int64_t>("sm_limit")
      .template Attr<bool>("batch_invariant")
      .RemainingArgs()
      .RemainingRets();
}

struct Call {
  Problem problem;
  void* d = nullptr;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

inline ffi::Error error_of(const Status& status) {
  switch (status.code) {
    case Code::kOk: return ffi::Error::Success();
    case Code::kInvalidArgument: return ffi::Error::InvalidArgument(status.message);
    case Code::kUnsupportedDevice:
    case Code::kNoDevice: return ffi::Error(ffi::ErrorCode::kFailedPrecondition, status.message);
    case Code::kCudaError: break;
  }
  return ffi::Error::Internal(status.message);
}

inline bool dtype_of(const ffi::AnyBuffer& buffer, DType& dtype) {
  switch (buffer.element_type()) {
    case ffi::F16: dtype = DType::kF16; return true;
    case ffi::BF16: dtype = DType::kBF16; return true;
    case ffi::F32: dtype = DType::kF32; return true;
    default: return false;
  }
}

inline Status read_call(const Attributes& attributes, const ffi::RemainingArgs& args,
                        const ffi::RemainingRets& rets, Call& call) {
  Labels labels;
  if (Status s = split_labels(attributes.spec, attributes.epilogue, labels); !s.ok()) return s;
  if (Status s = group_labels(labels); !s.ok()) return s;
  const size_t want = 2 + size_t{labels.has_c} + size_t{labels.has_bias};
  if (args.size() != want || rets.size() < 1 || rets.size() > 2)
    return invalid("hopgemm: %zu operands and %zu results, must be %zu and 1 or 2", args.size(), rets.size(),
                   want);

  Problem& p = call.problem;
  Dims dims[kOperands];
  const auto read = [&](Operand i, const ffi::AnyBuffer& buffer, const void*& data, DType& dtype) {
    dims[i] = Dims(buffer.dimensions().begin(), buffer.dimensions().size());
    data = buffer.untyped_data();
    return dtype_of(buffer, dtype);
  };
  size_t next = 0;
  const auto argument = [&](Operand i, const void*& data, DType& dtype) {
    ffi::ErrorOr<ffi::AnyBuffer> buffer = args.get<ffi::AnyBuffer>(next++);
    return buffer.has_value() && read(i, *buffer, data, dtype);
  };
  bool good = argument(kLhs, p.a.data, p.a.dtype) && argument(kRhs, p.b.data, p.b.dtype);
  if (labels.has_c) good = good && argument(kC, p.c.data, p.c.dtype);
  if (labels.has_bias) good = good && argument(kBias, p.bias.data, p.bias.dtype);
  ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> d = rets.get<ffi::AnyBuffer>(0);
  good = good && d.has_value() && read(kOut, **d, p.d.data, p.d.dtype);
  if (!good) return invalid("hopgemm: operands and result must be float16, bfloat16 or float32 buffers");
  call.d = (*d)->untyped_data();
  if (rets.size() == 2) {
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> workspace = rets.get<ffi::AnyBuffer>(1);
    if (!workspace.has_value()) return invalid("hopgemm: the second result must be a buffer");
    call.workspace = (*workspace)->untyped_data();
    call.workspace_bytes = static_cast<int64_t>((*workspace)->size_bytes());
  }
  // fill_problem() reads strides and sizes alone, and may exchange a and b: pointers and types go with them.
  const Matrix lhs = p.a, rhs = p.b;
  const bool swapped = !labels.of[kOut].empty() && has(labels.m, labels.of[kOut].back());
  if (Status s = fill_problem(labels, dims, p); !s.ok()) return s;
  if (swapped) {
    p.a.data = rhs.data, p.a.dtype = rhs.dtype;
    p.b.data = lhs.data, p.b.dtype = lhs.dtype;
  }
  if (attributes.sm_limit < 0 || attributes.sm_limit > INT32_MAX)
    return invalid("hopgemm: sm_limit is %lld; it must be 0 (all SMs) or more",
                   static_cast<long long>(attributes.sm_limit));
  p.alpha = attributes.alpha, p.beta = attributes.beta;
  p.sm_limit = static_cast<int>(attributes.sm_limit), p.batch_invariant = attributes.batch_invariant;
  return {};
}

// Says once that another config stands in for the one that a program names.
inline void say_replaced(const std::string& config, const char* reason, const char* by) {
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  if (!said.test_and_set())
    std::fprintf(stderr, "hopgemm: config '%s' of a compiled JAX program is not to be had (%s); using '%s'\n",
                 config.c_str(), reason, by);
}

// The plan of a call. A program that another version saved may name a config that this one lacks: then the
// selector chooses anew, and says so once.
inline Status plan_call(const Call& call, std::string_view named, const DeviceFacts& facts, Plan& plan) {
  const std::string config(named);
  const bool automatic = config.empty() || config == "auto";
  const Status first = make_plan(call.problem, config.c_str(), facts, plan);
  if (!first.ok()) {
    if (automatic || first.code != Code::kInvalidArgument) return first;
    if (Status s = make_plan(call.problem, "auto", facts, plan); !s.ok()) return s;
  }
  if (!first.ok()) say_replaced(config, first.message, plan.config);
  // Nobody knew of this choice when the program was lowered.
  if (automatic || !first.ok()) return fit_plan(call.problem, facts, call.workspace_bytes, plan);
  return {};
}

inline Status too_little_workspace(const Call& call, const Plan& plan) {
  return invalid(
      "hopgemm: config '%s' needs %lld bytes of workspace and the program has %lld: it was lowered for "
      "another GPU or by another version. Trace and lower it again",
      plan.config, static_cast<long long>(plan.workspace_bytes),
      static_cast<long long>(call.workspace_bytes));
}

}  // namespace hopgemm::xla_call
