// From tensors to a hopgemm::Problem, and its run on torch's device, stream and allocator: what every
// operator of torch_ops.cc and every kernel of torch_override.h does. Which operator is called, and when, is
// theirs.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <string>

#include "api/gemm.h"
#include "bindings/torch_abi.h"
#include "host/tuned.h"

namespace hopgemm::torch_ops {

using namespace torch_abi;
using torch_abi::check;  // beside that of a Status

#ifdef HOPGEMM_TORCH_ON_CPU  // the tests' build: the same operators on host memory, over
                             // tests/cpp/naive_gemm.cc
inline constexpr char kDispatchKey[] = "CPU";
inline constexpr int32_t kDevice = kCpu;
#else
inline constexpr char kDispatchKey[] = "CUDA";
inline constexpr int32_t kDevice = kCuda;
#endif

// ---- errors ----

// Becomes a ValueError in Python; a std::runtime_error becomes a RuntimeError.
template <class... Args> [[noreturn]] void refuse(const char* format, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, format, args...);
  throw std::invalid_argument(text);
}

inline void check(const Status& status) {
  if (status.ok()) return;
  if (status.code == Code::kInvalidArgument) throw std::invalid_argument(status.message);
  throw std::runtime_error(status.message);
}

// Is this a number that float holds: neither infinite nor 0 where `x` is not?
inline bool fits_float(double x) {
  const double size = std::fabs(x);
  return !std::isfinite(x) || size == 0 || (size >= FLT_TRUE_MIN && size <= FLT_MAX);
}

struct ShapeText {  // "(2, 3)"
  char text[128];
  explicit ShapeText(const View& v) {
    int at = std::snprintf(text, sizeof text, "(");
    for (int64_t i = 0; i < v.dim && at < 96; ++i)
      at += std::snprintf(text + at, sizeof text - at, i ? ", %lld" : "%lld",
                          static_cast<long long>(v.sizes[i]));
    std::snprintf(text + at, sizeof text - at, ")");
  }
};

// ---- tensors to matrices ----

inline DType dtype_of(const View& v, const char* name) {
  switch (v.dtype) {
    case kHalf: return DType::kF16;
    case kBFloat16: return DType::kBF16;
    case kFloat: return DType::kF32;
  }
  refuse("hopgemm.matmul: %s has a dtype that no kernel takes; supported: bfloat16, float16", name);
}

inline void check_device(const View& v, const View& a, const char* name) {
  if (v.device_type == kDevice && v.device_index == a.device_index) return;
  refuse("hopgemm.matmul: %s is on another device than the rest; all tensors of a call must share one", name);
}

// The batch dimensions of the result: those of a and b, broadcast against each other.
struct Batch {
  int dims = 0;
  int64_t sizes[kMaxBatchDims];

  void merge(const View& v, const char* name) {
    int64_t own = v.dim - 2;
    if (own < 0) refuse("hopgemm.matmul: %s is %s; 2 or more dimensions are needed", name, ShapeText(v).text);
    if (own > kMaxBatchDims)
      refuse("hopgemm.matmul: %s has %d batch dimensions; at most %d are supported: merge some with reshape",
             name, static_cast<int>(own), kMaxBatchDims);
    if (own > dims) {  // right-aligned: make room on the left
      std::copy_backward(sizes, sizes + dims, sizes + own);
      std::fill(sizes, sizes + (own - dims), 1);
      dims = static_cast<int>(own);
    }
    for (int64_t i = 0; i < own; ++i) {
      int64_t& size = sizes[dims - own + i];
      if (size == 1) size = v.sizes[i];
      else if (v.sizes[i] != 1 && v.sizes[i] != size)
        refuse("hopgemm.matmul: %s is %s; its batch dimensions do not broadcast with the other operand's",
               name, ShapeText(v).text);
    }
  }
};

// Stride of dimension `from_right` of a tensor that is broadcast to `size` there; 0 repeats it.
inline int64_t broadcast_stride(const View& v, int64_t from_right, int64_t size, const char* name) {
  int64_t i = v.dim - 1 - from_right;
  if (i < 0) return 0;
  if (v.sizes[i] == size) return v.strides[i];
  if (v.sizes[i] == 1) return 0;
  refuse("hopgemm.matmul: %s is %s, which does not broadcast to the result", name, ShapeText(v).text);
}

// `v` as a batch of rows x cols matrices, broadcast where it has size 1 or no dimension.
inline Matrix matrix(const View& v, const Batch& batch, int64_t rows, int64_t cols, const char* name) {
  Matrix m;
  if (v.dim > batch.dims + 2)
    refuse("hopgemm.matmul: %s is %s, more dimensions than the result has", name, ShapeText(v).text);
  m.data = v.data;
  m.dtype = dtype_of(v, name);
  m.row_stride = broadcast_stride(v, 1, rows, name);
  m.col_stride = broadcast_stride(v, 0, cols, name);
  for (int i = 0; i < batch.dims; ++i)
    m.batch_stride[i] = broadcast_stride(v, batch.dims + 1 - i, batch.sizes[i], name);
  return m;
}

// N values, or (batch..., N).
inline Bias bias_vector(const View& v, const Batch& batch, int64_t n) {
  Bias bias;
  if (v.dim < 1 || v.dim > batch.dims + 1 || v.sizes[v.dim - 1] != n)
    refuse("hopgemm.matmul: bias is %s; it needs one value for each of the %lld columns of the result",
           ShapeText(v).text, static_cast<long long>(n));
  bias.data = v.data;
  bias.dtype = dtype_of(v, "bias");
  bias.stride = v.strides[v.dim - 1];
  for (int i = 0; i < batch.dims; ++i)
    bias.batch_stride[i] = broadcast_stride(v, batch.dims - i, batch.sizes[i], "bias");
  return bias;
}

// ---- calls ----

// Everything of the problem but d; sizes[0..dim) is the shape of the result.
struct Normalized {
  View a, b;
  Batch batch;
  Problem problem;
  int64_t dim = 0, sizes[kMaxBatchDims + 2];

  Normalized(const View& a, const View& b) : a(a), b(b) {
    check_device(a, a, "a");
    check_device(b, a, "b");
    batch.merge(a, "a");
    batch.merge(b, "b");
    Problem& p = problem;
    p.m = a.sizes[a.dim - 2], p.k = a.sizes[a.dim - 1], p.n = b.sizes[b.dim - 1];
    if (b.sizes[b.dim - 2] != p.k)
      refuse("hopgemm.matmul: a is %s and b is %s; the last dimension of a must equal the last but one of b",
             ShapeText(a).text, ShapeText(b).text);
    if (a.dtype != b.dtype || a.dtype == kFloat)
      refuse("hopgemm.matmul: a and b need one dtype, bfloat16 or float16");
    p.batch_dims = batch.dims;
    std::copy(batch.sizes, batch.sizes + batch.dims, p.batch);
    p.a = matrix(a, batch, p.m, p.k, "a");
    p.b = matrix(b, batch, p.k, p.n, "b");
    dim = std::copy(batch.sizes, batch.sizes + batch.dims, sizes) - sizes;
    sizes[dim++] = p.m, sizes[dim++] = p.n;
  }

  void add_c(const View& c) {
    check_device(c, a, "c");
    problem.c = matrix(c, batch, problem.m, problem.n, "c");
  }

  void add_bias(const View& bias) {
    check_device(bias, a, "bias");
    problem.bias = bias_vector(bias, batch, problem.n);
  }

  void set_out(const View& d) {
    check_device(d, a, "out");
    if (d.dim != dim || !std::equal(sizes, sizes + dim, d.sizes))
      refuse("hopgemm.matmul: out is %s, which is not the shape of the result", ShapeText(d).text);
    problem.d = matrix(d, batch, problem.m, problem.n, "out");
  }
};

// The device of `like`, current for a scope, and torch's stream on it.
class Device {
 public:
#ifdef HOPGEMM_TORCH_ON_CPU
  explicit Device(const View& like) : like_(like) {
#else
  explicit Device(const View& like)
      : like_(like),
        guard_(like.device_index),
        stream_(current_cuda_stream(like.device_index)) {
#endif
    status_ = device_facts(like.device_index, facts_);
  }

  Status plan(const Problem& problem, const char* config, Plan& plan) const {
    return status_.ok() ? plan_tuned(problem, config, facts_, plan) : status_;
  }

  void enqueue(const Problem& problem, const Plan& plan) const {
    // The allocator reuses it in stream order, so it may go as soon as the work is enqueued.
    Tensor workspace;
    void* data = nullptr;
    if (plan.workspace_bytes > 0) {
      workspace = empty(1, &plan.workspace_bytes, kByte, like_);
      check(api().get_data_ptr(workspace.get(), &data), "workspace");
    }
    check(hopgemm::gemm(problem, plan, data, stream_));
  }

  void run(const Problem& problem, const char* config) const {
    Plan chosen;
    check(plan(problem, config, chosen));
    enqueue(problem, chosen);
  }

 private:
  const View& like_;
#ifndef HOPGEMM_TORCH_ON_CPU
  DeviceGuard guard_;
#endif
  void* stream_ = nullptr;
  DeviceFacts facts_;
  Status status_;
};

}  // namespace hopgemm::torch_ops
