// A stand-in for libhopgemm.so on host memory: src/api/gemm.h with the plainest loops, so that what the
// bindings make of tensors (strides, batches, epilogue, errors, workspace) is tested without a GPU. Knows no
// rule of TMA.
#include <cmath>
#include <cstring>

#include "api/gemm.h"
#include "host/tuned.h"

namespace hopgemm {
namespace {

float load(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  if (dtype == DType::kF16) return static_cast<float>(static_cast<const _Float16*>(data)[i]);
  uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(data)[i]) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void store(void* data, DType dtype, int64_t i, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[i] = value;
  } else if (dtype == DType::kF16) {
    static_cast<_Float16*>(data)[i] = static_cast<_Float16>(value);
  } else {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits = std::isnan(value) ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
    static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits >> 16);
  }
}

Status error(Code code, const char* text) {
  Status status;
  status.code = code;
  std::snprintf(status.message, sizeof status.message, "%s", text);
  return status;
}

int64_t dot(const int64_t* index, const int64_t* stride, int dims) {
  int64_t sum = 0;
  for (int i = 0; i < dims; ++i) sum += index[i] * stride[i];
  return sum;
}

// The bytes from the first element of a matrix to the end of its last.
struct Extent {
  const char *begin, *end;
  Extent(const Problem& p, const Matrix& m, int64_t rows, int64_t cols)
      : begin(static_cast<const char*>(m.data)) {
    int64_t last = (rows - 1) * m.row_stride + (cols - 1) * m.col_stride, elems = rows * cols;
    for (int i = 0; i < p.batch_dims; ++i) last += (p.batch[i] - 1) * m.batch_stride[i], elems *= p.batch[i];
    end = elems ? begin + (last + 1) * size_of(m.dtype) : begin;
  }
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

struct {
  Plan plan;
  int sm_limit;
  bool batch_invariant, workspace;
} last_call;

}  // namespace

Status device_facts(int, DeviceFacts& facts) {
  facts = h200_facts();
  return {};
}
DeviceFacts h200_facts() { return {}; }
int device_count() { return 0; }
int driver_version() { return 0; }
Status warmup() { return {}; }
const char* config_name(int index) { return index == 0 ? "naive" : nullptr; }

Status make_plan(const Problem& p, const char* config, const DeviceFacts&, Plan& plan) {
  plan = {};
  if (*config && std::strcmp(config, "naive") && std::strcmp(config, "unsupported"))
    return error(Code::kInvalidArgument, "hopgemm: config is unknown; the only one is 'naive'");
  if (!std::strcmp(config, "unsupported")) return error(Code::kUnsupportedDevice, "hopgemm: no Hopper GPU");
  if (p.c.data && p.c.dtype != p.a.dtype && p.c.dtype != DType::kF32)
    return error(Code::kInvalidArgument, "hopgemm: c must be of the operands' type or float32");
  if (p.bias.data && p.bias.dtype != p.a.dtype && p.bias.dtype != DType::kF32)
    return error(Code::kInvalidArgument, "hopgemm: bias must be of the operands' type or float32");
  if (p.d.dtype != p.a.dtype && p.d.dtype != DType::kF32)
    return error(Code::kInvalidArgument, "hopgemm: the result must be of the operands' type or float32");
  if ((p.m > 1 && p.d.row_stride == 0) || (p.n > 1 && p.d.col_stride == 0))
    return error(Code::kInvalidArgument, "hopgemm: out overlaps itself");
  Extent d(p, p.d, p.m, p.n);
  Matrix bias;
  bias.data = p.bias.data, bias.dtype = p.bias.dtype, bias.col_stride = p.bias.stride;
  bool c_is_d = p.c.data == p.d.data && p.c.row_stride == p.d.row_stride && p.c.col_stride == p.d.col_stride;
  if (p.c.data && !c_is_d && d.overlaps({p, p.c, p.m, p.n}))
    return error(Code::kInvalidArgument, "hopgemm: the result overlaps c");
  if (p.bias.data && d.overlaps({p, bias, 1, p.n}))
    return error(Code::kInvalidArgument, "hopgemm: the result overlaps the bias");
  if (d.overlaps({p, p.a, p.m, p.k}) || d.overlaps({p, p.b, p.k, p.n}))
    return error(Code::kInvalidArgument, "hopgemm: the result overlaps an operand");
  plan.path = Path::kGemm;
  plan.workspace_bytes = p.k % 8 ? 256 : 0;  // some calls have one
  std::snprintf(plan.config, sizeof plan.config, "%s", config);
  return {};
}

Status plan_tuned(const Problem& p, const char* config, const DeviceFacts& facts, Plan& plan) {
  return make_plan(p, config, facts, plan);
}

Status gemm(const Problem& p, const Plan& plan, void* workspace, void*) {
  last_call = {plan, p.sm_limit, p.batch_invariant, workspace != nullptr};
  if (plan.workspace_bytes) std::memset(workspace, 0xff, plan.workspace_bytes);
  int64_t index[kMaxBatchDims] = {}, count = 1;
  for (int i = 0; i < p.batch_dims; ++i) count *= p.batch[i];
  for (int64_t z = 0; z < count; ++z) {
    int64_t rest = z;
    for (int i = p.batch_dims - 1; i >= 0; rest /= p.batch[i--]) index[i] = rest % p.batch[i];
    auto offset = [&](const Matrix& m, int64_t row, int64_t col) {
      return dot(index, m.batch_stride, p.batch_dims) + row * m.row_stride + col * m.col_stride;
    };
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        float sum = 0;
        for (int64_t k = 0; p.alpha != 0 && k < p.k; ++k)
          sum += load(p.a.data, p.a.dtype, offset(p.a, i, k)) * load(p.b.data, p.b.dtype, offset(p.b, k, j));
        sum *= p.alpha;
        if (p.beta != 0) sum += p.beta * load(p.c.data, p.c.dtype, offset(p.c, i, j));
        if (p.bias.data)
          sum += load(p.bias.data, p.bias.dtype,
                      dot(index, p.bias.batch_stride, p.batch_dims) + j * p.bias.stride);
        store(const_cast<void*>(p.d.data), p.d.dtype, offset(p.d, i, j), sum);
      }
  }
  return {};
}

}  // namespace hopgemm

// What the last call was asked for, for the tests to read.
extern "C" HOPGEMM_API const char* naive_last_call() {
  static char text[512];
  const auto& call = hopgemm::last_call;
  std::snprintf(text, sizeof text, "config=%s sm_limit=%d batch_invariant=%d workspace=%d", call.plan.config,
                call.sm_limit, call.batch_invariant, call.workspace);
  return text;
}
