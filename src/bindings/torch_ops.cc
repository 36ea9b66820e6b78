// torch.ops.hopgemm.*: turns tensors into a hopgemm::Problem and runs it on torch's stream, device and
// allocator. Needs no header of torch or Python. Contracts that only Python can register (fake, autograd,
// vmap, autocast, the CPU) are in python/hopgemm/_torch_*.py.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "api/gemm.h"
#include "bindings/torch_abi.h"

namespace {

using namespace torch_abi;
using hopgemm::DType;
using hopgemm::kMaxBatchDims;
using hopgemm::Problem;

#ifdef HOPGEMM_TORCH_ON_CPU  // the tests' build: the same operators on host memory, over
                             // tests/cpp/naive_gemm.cc
constexpr char kDispatchKey[] = "CPU";
constexpr int32_t kDevice = kCpu;
#else
constexpr char kDispatchKey[] = "CUDA";
constexpr int32_t kDevice = kCuda;
#endif

// ---- errors ----

// Becomes a ValueError in Python; a std::runtime_error becomes a RuntimeError.
template <class... Args> [[noreturn]] void refuse(const char* format, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, format, args...);
  throw std::invalid_argument(text);
}

void check(const hopgemm::Status& status) {
  if (status.ok()) return;
  if (status.code == hopgemm::Code::kInvalidArgument) throw std::invalid_argument(status.message);
  throw std::runtime_error(status.message);
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

DType dtype_of(const View& v, const char* name) {
  switch (v.dtype) {
    case kHalf: return DType::kF16;
    case kBFloat16: return DType::kBF16;
    case kFloat: return DType::kF32;
  }
  refuse("hopgemm.matmul: %s has a dtype that no kernel takes; supported: bfloat16, float16", name);
}

void check_device(const View& v, const View& a, const char* name) {
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
int64_t broadcast_stride(const View& v, int64_t from_right, int64_t size, const char* name) {
  int64_t i = v.dim - 1 - from_right;
  if (i < 0) return 0;
  if (v.sizes[i] == size) return v.strides[i];
  if (v.sizes[i] == 1) return 0;
  refuse("hopgemm.matmul: %s is %s, which does not broadcast to the result", name, ShapeText(v).text);
}

// `v` as a batch of rows x cols matrices, broadcast where it has size 1 or no dimension.
hopgemm::Matrix matrix(const View& v, const Batch& batch, int64_t rows, int64_t cols, const char* name) {
  hopgemm::Matrix m;
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
hopgemm::Bias bias_vector(const View& v, const Batch& batch, int64_t n) {
  hopgemm::Bias bias;
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

// The tensors and options of a call, owned until it ends.
struct Call {
  Tensor a, b, c, bias;
  double alpha = 1.0, beta = 0.0;
  int64_t sm_limit = 0;
  bool batch_invariant = false;
};

// Everything of the problem but d; sizes[0..dim) is the shape of the result.
struct Normalized {
  View a, b;
  Batch batch;
  Problem problem;
  int64_t dim = 0, sizes[kMaxBatchDims + 2];

  explicit Normalized(const Call& call) : a(call.a), b(call.b) {
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
    p.alpha = static_cast<float>(call.alpha), p.beta = static_cast<float>(call.beta);
    p.batch_invariant = call.batch_invariant;
    if (call.sm_limit < 0 || call.sm_limit > INT32_MAX)
      refuse("hopgemm.matmul: sm_limit is %lld; it must be 0 (all SMs) or positive",
             static_cast<long long>(call.sm_limit));
    p.sm_limit = static_cast<int>(call.sm_limit);
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
    check(hopgemm::device_facts(like.device_index, facts_));
  }

  // Plans and enqueues.
  void run(const Problem& problem, const char* config) const {
    hopgemm::Plan plan;
    check(hopgemm::make_plan(problem, config, facts_, plan));
    Tensor
        workspace;  // the allocator reuses it in stream order, so it may go as soon as the work is enqueued
    void* data = nullptr;
    if (plan.workspace_bytes > 0) {
      workspace = empty(1, &plan.workspace_bytes, kByte, like_);
      torch_abi::check(api().get_data_ptr(workspace.get(), &data), "workspace");
    }
    check(hopgemm::gemm(problem, plan, data, stream_));
  }

 private:
  const View& like_;
#ifndef HOPGEMM_TORCH_ON_CPU
  DeviceGuard guard_;
#endif
  void* stream_ = nullptr;
  hopgemm::DeviceFacts facts_;
};

void write(Normalized& call, const View& d, const char* config) {
  call.problem.d = matrix(d, call.batch, call.problem.m, call.problem.n, "out");
  Device(call.a).run(call.problem, config);
}

void check_out(const Normalized& call, const View& d) {
  check_device(d, call.a, "out");
  if (d.dim != call.dim || !std::equal(call.sizes, call.sizes + call.dim, d.sizes))
    refuse("hopgemm.matmul: out is %s, which is not the shape of the result", ShapeText(d).text);
}

// ---- the operators ----

constexpr char kGemmArgs[] =
    "(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, float alpha=1.0, float beta=0.0, "
    "ScalarType? out_dtype=None, str config=\"\", int sm_limit=0, bool batch_invariant=False) -> Tensor";
// A custom operator must not return an alias of an argument, and one tensor must not come in as `out` and as
// `c`: so it returns nothing, and beta without c reads `out`.
constexpr char kGemmOutArgs[] =
    "(Tensor(a!) out, Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, float alpha=1.0, float "
    "beta=0.0, "
    "str config=\"\", int sm_limit=0, bool batch_invariant=False) -> ()";

void gemm(Value* s, uint64_t, uint64_t) {
  Call call{take<Tensor>(s[0]), take<Tensor>(s[1]), take_or<Tensor>(s[2], {}), take_or<Tensor>(s[3], {}),
            take<double>(s[4]), take<double>(s[5]), take<int64_t>(s[8]),       take<bool>(s[9])};
  int32_t out_dtype = take_or<int32_t>(s[6], -1);
  Text config(s[7]);

  Normalized n(call);
  if (call.c) n.add_c(View(call.c));
  else if (call.beta != 0) refuse("hopgemm.matmul: beta is %g but c is None; pass c, or beta=0", call.beta);
  if (call.bias) n.add_bias(View(call.bias));
  Tensor out = empty(n.dim, n.sizes, out_dtype < 0 ? n.a.dtype : out_dtype, n.a);
  write(n, View(out), config.c_str());
  s[0] = give(std::move(out));
}

void gemm_out(Value* s, uint64_t, uint64_t) {
  Tensor out = take<Tensor>(s[0]);
  Call call{take<Tensor>(s[1]), take<Tensor>(s[2]), take_or<Tensor>(s[3], {}), take_or<Tensor>(s[4], {}),
            take<double>(s[5]), take<double>(s[6]), take<int64_t>(s[8]),       take<bool>(s[9])};
  Text config(s[7]);

  Normalized n(call);
  View d(out);
  check_out(n, d);
  if (call.c) n.add_c(View(call.c));
  else if (call.beta != 0) n.add_c(d);
  if (call.bias) n.add_bias(View(call.bias));
  write(n, d, config.c_str());
}

// The arguments of most calls, (a, b) or (a, b, bias): every further one costs 0.1 us of conversion even at
// its default.
void mm(Value* s, uint64_t num_args, uint64_t) {
  Call call{take<Tensor>(s[0]), take<Tensor>(s[1]), {}, num_args > 2 ? take<Tensor>(s[2]) : Tensor()};
  Normalized n(call);
  if (call.bias) n.add_bias(View(call.bias));
  Tensor out = empty(n.dim, n.sizes, n.a.dtype, n.a);
  write(n, View(out), "");
  s[0] = give(std::move(out));
}

void mm_out(Value* s, uint64_t, uint64_t) {
  Tensor out = take<Tensor>(s[0]);
  Call call{take<Tensor>(s[1]), take<Tensor>(s[2]), {}, {}};
  Normalized n(call);
  View d(out);
  check_out(n, d);
  write(n, d, "");
}

// A contiguous (..., rows, cols) tensor as one matrix of all its rows.
void fold_rows(View& v, int64_t sizes[2], int64_t strides[2], const char* name) {
  int64_t rows = 1, expected = v.strides[v.dim - 2];
  for (int64_t i = v.dim - 2; i >= 0; --i) {
    if (v.sizes[i] != 1 && v.strides[i] != expected)
      refuse("hopgemm._mm_backward: the rows of %s do not fold into one matrix; make it contiguous", name);
    rows *= v.sizes[i];
    expected *= v.sizes[i];
  }
  sizes[0] = rows, sizes[1] = v.sizes[v.dim - 1];
  strides[0] = v.strides[v.dim - 2], strides[1] = v.strides[v.dim - 1];
  v.dim = 2, v.sizes = sizes, v.strides = strides;
}

// Both gradients of mm(a, b) in one call: the transposes are strides here, not tensors.
// b is 2-D (then the rows of grad and a must fold into one matrix), or a and b have the same batch
// dimensions.
void mm_backward(Value* s, uint64_t, uint64_t) {
  Tensor grad = take<Tensor>(s[0]);
  Call call{take<Tensor>(s[1]), take<Tensor>(s[2]), {}, {}};
  View g(grad), a(call.a), b(call.b);
  for (const View* v : {&g, &a, &b})
    if (v->dim < 2) refuse("hopgemm._mm_backward: 2 or more dimensions are needed");
  check_device(a, a, "a");
  check_device(b, a, "b");
  check_device(g, a, "grad");

  Tensor grad_a = empty(a.dim, a.sizes, a.dtype, a), grad_b = empty(b.dim, b.sizes, b.dtype, a);
  View da(grad_a), db(grad_b);
  int64_t sizes[3][2], strides[3][2];
  if (b.dim == 2) {
    fold_rows(g, sizes[0], strides[0], "grad");
    fold_rows(a, sizes[1], strides[1], "a");
    fold_rows(da, sizes[2], strides[2], "the result");
  }
  Batch batch;
  batch.merge(a, "a");
  if (b.dim != a.dim || g.dim != a.dim || !std::equal(a.sizes, a.sizes + a.dim - 2, b.sizes) ||
      !std::equal(a.sizes, a.sizes + a.dim - 2, g.sizes))
    refuse("hopgemm._mm_backward: the batch dimensions of grad, a and b differ");
  int64_t m = a.sizes[a.dim - 2], k = a.sizes[a.dim - 1], n = b.sizes[b.dim - 1];
  if (b.sizes[b.dim - 2] != k || g.sizes[g.dim - 2] != m || g.sizes[g.dim - 1] != n)
    refuse("hopgemm._mm_backward: grad is %s, a %s, b %s: not of one product", ShapeText(g).text,
           ShapeText(a).text, ShapeText(b).text);

  Problem p;
  p.batch_dims = batch.dims;
  std::copy(batch.sizes, batch.sizes + batch.dims, p.batch);
  hopgemm::Matrix mg = matrix(g, batch, m, n, "grad");
  hopgemm::Matrix a_transposed = matrix(a, batch, m, k, "a"), b_transposed = matrix(b, batch, k, n, "b");
  std::swap(a_transposed.row_stride, a_transposed.col_stride);
  std::swap(b_transposed.row_stride, b_transposed.col_stride);
  p.m = m, p.n = k, p.k = n;  // grad_a = grad @ b.T
  p.a = mg, p.b = b_transposed, p.d = matrix(da, batch, m, k, "the gradient of a");
  Device device(a);
  device.run(p, "");
  p.m = k, p.n = n, p.k = m;  // grad_b = a.T @ grad
  p.a = a_transposed, p.b = mg, p.d = matrix(db, batch, k, n, "the gradient of b");
  device.run(p, "");
  s[0] = give(std::move(grad_a));
  s[1] = give(std::move(grad_b));
}

void register_ops() {
  const Api& torch = api();
  static Library definitions, kernels;  // never freed: the operators live as long as the process
  auto define = [&](const std::string& schema) {
    torch_abi::check(torch.library_def(definitions, schema.c_str()), schema.c_str());
  };
  auto implement = [&](const char* name, Kernel kernel) {
    torch_abi::check(torch.library_impl(kernels, name, kernel), name);
  };
  torch_abi::check(torch.library_init_fragment("hopgemm", "hopgemm", 0, &definitions), "torch library");
  torch_abi::check(torch.library_init_impl("hopgemm", kDispatchKey, "hopgemm", 0, &kernels), "torch library");
  define(std::string("gemm") + kGemmArgs);
  define(std::string("_gemm") + kGemmArgs);
  define(std::string("gemm_out") + kGemmOutArgs);
  define("_mm(Tensor a, Tensor b) -> Tensor");
  define("_mm_bias(Tensor a, Tensor b, Tensor bias) -> Tensor");
  define("_mm_out(Tensor(a!) out, Tensor a, Tensor b) -> ()");
  define("_mm_backward(Tensor grad, Tensor a, Tensor b) -> (Tensor, Tensor)");
  implement("gemm", gemm);
  implement("_gemm", gemm);
  implement("gemm_out", gemm_out);
  implement("_mm", mm);
  implement("_mm_bias", mm);
  implement("_mm_out", mm_out);
  implement("_mm_backward", mm_backward);
}

}  // namespace

// Registers torch.ops.hopgemm.*; call it once, after `import torch`. nullptr, or what went wrong.
extern "C" HOPGEMM_API const char* hopgemm_register_torch_ops() {
  static char error[512];
  try {
    register_ops();
    return nullptr;
  } catch (const std::exception& e) {
    std::snprintf(error, sizeof error, "%s", e.what());
    return error;
  }
}
