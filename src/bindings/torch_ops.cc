// torch.ops.hopgemm.*, and what Python calls of this library. Needs no header of torch or Python. Schemas,
// and what only Python can register (fake, autograd, vmap, autocast, the CPU), are in
// python/hopgemm/_torch_*.py.
#include <algorithm>
#include <exception>

#include "bindings/torch_autocast.h"
#include "bindings/torch_override.h"
#include "bindings/torch_problem.h"

namespace hopgemm::torch_ops {
namespace {

// ---- calls ----

// The tensors and options of a call, owned until it ends.
struct Call {
  Tensor a, b, c, bias;
  double alpha = 1.0, beta = 0.0;
  int64_t sm_limit = 0;
  bool batch_invariant = false;
};

Normalized normalized(const Call& call) {
  Normalized n{View(call.a), View(call.b)};
  Problem& p = n.problem;
  for (const auto& [name, x] : {std::pair("alpha", call.alpha), std::pair("beta", call.beta)})
    if (!fits_float(x))
      refuse(
          "hopgemm.matmul: %s is %g; it must be 0 or between 1.5e-45 and 3.4e38 in size, as float32 "
          "holds. Scale an operand, or the result",
          name, x);
  p.alpha = static_cast<float>(call.alpha), p.beta = static_cast<float>(call.beta);
  p.batch_invariant = call.batch_invariant;
  if (call.sm_limit < 0)
    refuse("hopgemm.matmul: sm_limit is %lld; it must be 0 (all SMs) or positive",
           static_cast<long long>(call.sm_limit));
  p.sm_limit = static_cast<int>(std::min<int64_t>(call.sm_limit, INT32_MAX));
  if (call.bias) n.add_bias(View(call.bias));
  return n;
}

void write(Normalized& n, const View& d, const char* config) {
  n.set_out(d);
  Device(n.a).run(n.problem, config);
}

// ---- the operators: their schemas are in python/hopgemm/_torch_library.py ----

void gemm(Value* s, uint64_t, uint64_t) {
  Call call{take<Tensor>(s[0]), take<Tensor>(s[1]), take_or<Tensor>(s[2], {}), take_or<Tensor>(s[3], {}),
            take<double>(s[4]), take<double>(s[5]), take<int64_t>(s[8]),       take<bool>(s[9])};
  int32_t out_dtype = take_or<int32_t>(s[6], -1);
  Text config(s[7]);

  Normalized n = normalized(call);
  if (call.c) n.add_c(View(call.c));
  else if (call.beta != 0) refuse("hopgemm.matmul: beta is %g but c is None; pass c, or beta=0", call.beta);
  Tensor out = empty(n.dim, n.sizes, out_dtype < 0 ? n.a.dtype : out_dtype, n.a);
  write(n, View(out), config.c_str());
  s[0] = give(std::move(out));
}

void gemm_out(Value* s, uint64_t, uint64_t) {
  Tensor out = take<Tensor>(s[0]);
  Call call{take<Tensor>(s[1]), take<Tensor>(s[2]), take_or<Tensor>(s[3], {}), take_or<Tensor>(s[4], {}),
            take<double>(s[5]), take<double>(s[6]), take<int64_t>(s[8]),       take<bool>(s[9])};
  Text config(s[7]);

  Normalized n = normalized(call);
  View d(out);
  n.set_out(d);
  if (call.c) n.add_c(View(call.c));
  else if (call.beta != 0) n.add_c(d);
  Device(n.a).run(n.problem, config.c_str());
}

// The arguments of most calls, (a, b) or (a, b, bias): every further one costs 0.1 us of conversion even at
// its default.
void mm(Value* s, uint64_t num_args, uint64_t) {
  Call call{take<Tensor>(s[0]), take<Tensor>(s[1]), {}, num_args > 2 ? take<Tensor>(s[2]) : Tensor()};
  Normalized n = normalized(call);
  Tensor out = empty(n.dim, n.sizes, n.a.dtype, n.a);
  write(n, View(out), "");
  s[0] = give(std::move(out));
}

void mm_out(Value* s, uint64_t, uint64_t) {
  Tensor out = take<Tensor>(s[0]);
  Call call{take<Tensor>(s[1]), take<Tensor>(s[2]), {}, {}};
  Normalized n = normalized(call);
  write(n, View(out), "");
}

// The same matrix with its dimensions exchanged. Valid while `v` is.
struct Transposed {
  int64_t sizes[2], strides[2];
  View view;

  Transposed(const View& v, const char* name) : view(v) {
    if (v.dim != 2) refuse("hopgemm._linear: %s is %s; 2 dimensions are needed", name, ShapeText(v).text);
    for (int i = 0; i < 2; ++i) sizes[i] = v.sizes[1 - i], strides[i] = v.strides[1 - i];
    view.sizes = sizes, view.strides = strides;
  }
  Transposed(const Transposed&) = delete;
  Transposed& operator=(const Transposed&) = delete;
};

// x @ weight.T + bias, of one vector. The transpose is strides here, not a tensor.
void linear(Value* s, uint64_t, uint64_t) {
  Call call{take<Tensor>(s[0]), take<Tensor>(s[1]), {}, take_or<Tensor>(s[2], {})};
  const Transposed b(View(call.b), "weight");
  Normalized n{View(call.a), b.view};
  if (call.bias) {
    const View bias(call.bias);
    if (bias.dim != 1) refuse("hopgemm._linear: bias is %s; one dimension is needed", ShapeText(bias).text);
    n.add_bias(bias);
  }
  Tensor out = empty(n.dim, n.sizes, n.a.dtype, n.a);
  write(n, View(out), "");
  s[0] = give(std::move(out));
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

// Writes both gradients of a @ b: the transposes are strides here, not tensors.
// b is 2-D (then the rows of g and a must fold into one matrix), or a and b have the same batch dimensions.
void write_gradients(View g, View a, View b, View da, View db) {
  for (const View* v : {&g, &a, &b})
    if (v->dim < 2) refuse("hopgemm._mm_backward: 2 or more dimensions are needed");
  check_device(a, a, "a");
  check_device(b, a, "b");
  check_device(g, a, "grad");
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
  Matrix mg = matrix(g, batch, m, n, "grad");
  Matrix a_transposed = matrix(a, batch, m, k, "a"), b_transposed = matrix(b, batch, k, n, "b");
  std::swap(a_transposed.row_stride, a_transposed.col_stride);
  std::swap(b_transposed.row_stride, b_transposed.col_stride);
  p.m = m, p.n = k, p.k = n;  // grad_a = grad @ b.T
  p.a = mg, p.b = b_transposed, p.d = matrix(da, batch, m, k, "the gradient of a");
  Device device(a);
  device.run(p, "");
  p.m = k, p.n = n, p.k = m;  // grad_b = a.T @ grad
  p.a = a_transposed, p.b = mg, p.d = matrix(db, batch, k, n, "the gradient of b");
  device.run(p, "");
}

// Both gradients of mm(a, b) in one call.
void mm_backward(Value* s, uint64_t, uint64_t) {
  Tensor grad = take<Tensor>(s[0]);
  Call call{take<Tensor>(s[1]), take<Tensor>(s[2]), {}, {}};
  const View a(call.a), b(call.b);
  // As torch.mm's: the gradient of a transposed weight that lies like it needs no copy to be the weight's.
  const bool by_column = b.dim == 2 && b.strides[0] == 1 && b.strides[1] == b.sizes[0];
  Tensor grad_a = empty(a.dim, a.sizes, a.dtype, a), grad_b = empty(b.dim, b.sizes, b.dtype, a, by_column);
  write_gradients(View(grad), a, b, View(grad_a), View(grad_b));
  s[0] = give(std::move(grad_a));
  s[1] = give(std::move(grad_b));
}

// The gradients of x and weight in linear(x, weight), each in float32 where the caller wants it so.
void linear_backward(Value* s, uint64_t, uint64_t) {
  Tensor grad = take<Tensor>(s[0]), input = take<Tensor>(s[1]), parameter = take<Tensor>(s[2]);
  const bool wide_x = take<bool>(s[3]), wide_weight = take<bool>(s[4]);
  const View x(input), weight(parameter);
  Tensor grad_x = empty(x.dim, x.sizes, wide_x ? kFloat : x.dtype, x);
  Tensor grad_weight = empty(weight.dim, weight.sizes, wide_weight ? kFloat : x.dtype, x);
  const Transposed b(weight, "weight"), db(View(grad_weight), "its gradient");
  write_gradients(View(grad), x, b.view, View(grad_x), db.view);
  s[0] = give(std::move(grad_x));
  s[1] = give(std::move(grad_weight));
}

// What an autocast region makes of `t`: for a float32 parameter once a region, from torch's own cache.
void cached_cast(Value* s, uint64_t, uint64_t) {
  const Tensor t = take<Tensor>(s[0]);
  s[0] = give(autocast_cast(t, take<int32_t>(s[1])));
}

// nullptr, or the text of what `f` threw.
template <class F> const char* said(F f) {
  static char error[512];
  try {
    f();
    return nullptr;
  } catch (const std::exception& e) {
    std::snprintf(error, sizeof error, "%s", e.what());
    return error;
  }
}

void register_ops() {
  const Api& torch = api();
  static Library kernels, composite;  // never freed: the operators live as long as the process
  auto implement = [&](Library library, const char* name, Kernel kernel) {
    check(torch.library_impl(library, name, kernel), name);
  };
  check(torch.library_init_impl("hopgemm", kDispatchKey, "hopgemm", 0, &kernels), "torch library");
  implement(kernels, "gemm", gemm);
  implement(kernels, "_gemm", gemm);
  implement(kernels, "gemm_out", gemm_out);
  implement(kernels, "_mm", mm);
  implement(kernels, "_mm_bias", mm);
  implement(kernels, "_mm_out", mm_out);
  implement(kernels, "_mm_backward", mm_backward);
  implement(kernels, "_linear", linear);
  implement(kernels, "_linear_backward", linear_backward);
  if (!has_autocast_cast()) return;
  check(torch.library_init_impl("hopgemm", "CompositeImplicitAutograd", "hopgemm", 0, &composite),
        "torch library");
  implement(composite, "_cached_cast", cached_cast);
}

}  // namespace
}  // namespace hopgemm::torch_ops

// ---- what Python calls, through ctypes ----

using namespace hopgemm::torch_ops;

// Registers the kernels of torch.ops.hopgemm.*; call it once, after `import torch`. nullptr, or what went
// wrong.
extern "C" HOPGEMM_API const char* hopgemm_register_torch_ops() {
  return said([] { register_ops(); });
}

// The rest is for hopgemm.torch.override() (python/hopgemm/_torch_aten.py); with the GIL held.

extern "C" HOPGEMM_API const char* hopgemm_override_key() { return kDispatchKey; }
extern "C" HOPGEMM_API const char* hopgemm_override_outcome(int index) { return outcome_name(index); }
extern "C" HOPGEMM_API const char* hopgemm_override_operator(int index) { return override_name(index); }

// Before the next two: the kernel that is there (for mm and bmm it takes a list of capsules), whether that is
// torch's own, and what makes a list of tensors from a list of capsules. nullptr, or what went wrong.
extern "C" HOPGEMM_API const char* hopgemm_override_prepare(int index, void* previous, bool is_torchs,
                                                            void* steal) {
  return said([=] { prepare_override(index, previous, is_torchs, steal); });
}
extern "C" HOPGEMM_API const char* hopgemm_override_install(int index) {
  return said([=] { install_override(index); });
}
// nullptr where it fails, which ctypes raises.
extern "C" HOPGEMM_API void* hopgemm_override_python_kernel(int index) {
  void* kernel = nullptr;
  said([&] { kernel = python_kernel(index); });
  return kernel;
}
extern "C" HOPGEMM_API void hopgemm_override_remove(int index) { remove_override(index); }

extern "C" HOPGEMM_API void hopgemm_override_policy(bool active, bool batch_invariant, int sm_limit) {
  policy.store({active, batch_invariant, sm_limit});
}
extern "C" HOPGEMM_API int64_t hopgemm_override_count(int index, int outcome) {
  return override_count(index, outcome);
}
