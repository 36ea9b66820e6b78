// A host stand-in for the kernel, for tests only: the CUDA handler's attributes, operands, Problem and plan
// (on an H200), then a naive strided product with fp32 sums and one rounding. Counts its calls and remembers
// the last one.
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>

#include "bindings/xla_call.h"

namespace hopgemm::xla_call {
namespace {

std::mutex g_mutex;  // four virtual devices call at once
int64_t g_calls = 0;
std::string g_last;

float load(const void* data, DType type, int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  if (type == DType::kF16) return static_cast<float>(static_cast<const _Float16*>(data)[i]);
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(data)[i]} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

void store(void* data, DType type, int64_t i, float f) {
  if (type == DType::kF32) {
    static_cast<float*>(data)[i] = f;
  } else if (type == DType::kF16) {
    static_cast<_Float16*>(data)[i] = static_cast<_Float16>(f);
  } else {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    const bool nan = (u & 0x7fffffff) > 0x7f800000;
    static_cast<uint16_t*>(data)[i] =
        nan ? 0x7fc0 : static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
}

int64_t at(const Matrix& x, int64_t row, int64_t col, const int64_t* index, int dims) {
  int64_t offset = row * x.row_stride + col * x.col_stride;
  for (int i = 0; i < dims; ++i) offset += index[i] * x.batch_stride[i];
  return offset;
}

void multiply(const Problem& p, void* d) {
  int64_t batches = 1;
  for (int i = 0; i < p.batch_dims; ++i) batches *= p.batch[i];
  for (int64_t flat = 0; flat < batches; ++flat) {
    int64_t index[kMaxBatchDims] = {}, rest = flat, bias_at = 0;
    for (int i = p.batch_dims; i-- > 0; rest /= p.batch[i]) index[i] = rest % p.batch[i];
    for (int i = 0; i < p.batch_dims; ++i) bias_at += index[i] * p.bias.batch_stride[i];
    for (int64_t row = 0; row < p.m; ++row)
      for (int64_t col = 0; col < p.n; ++col) {
        float sum = 0;
        for (int64_t k = 0; k < p.k; ++k)
          sum += load(p.a.data, p.a.dtype, at(p.a, row, k, index, p.batch_dims)) *
                 load(p.b.data, p.b.dtype, at(p.b, k, col, index, p.batch_dims));
        float value = p.alpha == 0 ? 0 : p.alpha * sum;
        if (p.beta != 0) value += p.beta * load(p.c.data, p.c.dtype, at(p.c, row, col, index, p.batch_dims));
        if (p.bias.data) value += load(p.bias.data, p.bias.dtype, bias_at + col * p.bias.stride);
        store(d, p.d.dtype, at(p.d, row, col, index, p.batch_dims), value);
      }
  }
}

ffi::Error matmul(std::string_view spec, std::string_view epilogue, std::string_view config, float alpha,
                  float beta, int64_t sm_limit, bool batch_invariant, ffi::RemainingArgs args,
                  ffi::RemainingRets rets) {
  const Attributes attributes{spec, epilogue, config, alpha, beta, sm_limit, batch_invariant};
  Call call;
  Plan plan;
  if (Status s = read_call(attributes, args, rets, call); !s.ok()) return error_of(s);
  if (Status s = plan_call(call, config, h200_facts(), plan); !s.ok()) return error_of(s);
  if (plan.workspace_bytes > call.workspace_bytes) return error_of(too_little_workspace(call, plan));
  std::memset(call.workspace, 0x7f, static_cast<size_t>(call.workspace_bytes));  // it is ours to write
  multiply(call.problem, call.d);
  const std::lock_guard lock(g_mutex);
  ++g_calls;
  g_last = std::string(spec) + ";" + std::string(epilogue) + ";" + std::string(config) + ";" +
           std::to_string(sm_limit) + ";" + std::to_string(batch_invariant) + ";" +
           std::to_string(call.workspace_bytes) + ";" + plan.config;
  return ffi::Error::Success();
}

}  // namespace
}  // namespace hopgemm::xla_call

XLA_FFI_DEFINE_HANDLER_SYMBOL(host_matmul, hopgemm::xla_call::matmul,
                              hopgemm::xla_call::bind_call(xla::ffi::Ffi::Bind()),
                              {xla::ffi::Traits::kCmdBufferCompatible});

extern "C" int64_t host_calls() { return hopgemm::xla_call::g_calls; }
// "spec;epilogue;config;sm_limit;batch_invariant;workspace_bytes;planned config" of the last call.
extern "C" const char* host_last() { return hopgemm::xla_call::g_last.c_str(); }

// The Problem that labels and shapes make, as text; `dims` holds all operands' dimensions one after the
// other.
extern "C" void host_describe(const char* spec, const char* epilogue, const int64_t* dims, char* text,
                              size_t size) {
  using namespace hopgemm;
  using namespace hopgemm::xla_call;
  Labels labels;
  Problem p;
  Status s = split_labels(spec, epilogue, labels);
  if (s.ok()) s = group_labels(labels);
  if (s.ok()) {
    Dims of[kOperands];
    for (int i = 0; i < kOperands; dims += labels.of[i].size(), ++i) of[i] = Dims(dims, labels.of[i].size());
    s = fill_problem(labels, of, p);
  }
  if (!s.ok()) {
    std::snprintf(text, size, "error: %s", s.message);
    return;
  }
  std::string out;
  const auto put = [&](int64_t x) { out += std::to_string(x) + " "; };
  for (int64_t x : {p.m, p.n, p.k}) put(x);
  for (int i = 0; i < p.batch_dims; ++i) put(p.batch[i]);
  for (const Matrix* x : {&p.a, &p.b, &p.d}) {
    for (int i = 0; i < p.batch_dims; ++i) put(x->batch_stride[i]);
    put(x->row_stride), put(x->col_stride);
  }
  std::snprintf(text, size, "%s", out.c_str());
}
