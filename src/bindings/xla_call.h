// One XLA FFI call frame as a Problem: what the CUDA handler and the tests' host handler have in common.
//
// Arguments: lhs, rhs, then c and bias as `epilogue` lists them. Results: d, then the workspace (u8) if the
// plan needs one. All arrays are row-major.
#pragma once
#include <string_view>

#include "bindings/xla_spec.h"
#include "xla/ffi/api/ffi.h"

namespace hopgemm::xla_call {

namespace ffi = ::xla::ffi;

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

inline Status read_call(std::string_view spec, std::string_view epilogue, const ffi::RemainingArgs& args,
                        const ffi::RemainingRets& rets, Call& call) {
  Labels labels;
  if (Status s = split_labels(spec, epilogue, labels); !s.ok()) return s;
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
  return {};
}

}  // namespace hopgemm::xla_call
