// hopgemm._core: the C++ surface in Python. Thin: fill a Problem, call gemm.h, turn a Status into an
// exception.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <tuple>

#include "api/gemm.h"
#include "bindings/cuda_runtime.h"
#include "host/roof.h"
#include "host/tuned.h"
#include "xla/ffi/api/c_api.h"

namespace nb = nanobind;
using namespace nb::literals;

extern "C" XLA_FFI_Error* hopgemm_xla_matmul(XLA_FFI_CallFrame* call_frame);

namespace {

using hopgemm::DType;
using hopgemm::Matrix;
using hopgemm::Problem;

void check(const hopgemm::Status& s) {
  if (s.ok()) return;
  if (s.code == hopgemm::Code::kInvalidArgument) throw nb::value_error(s.message);
  throw std::runtime_error(s.message);
}

// ---- plan
// -----------------------------------------------------------------------------------------------------------

DType dtype_of(const std::string& name) {
  for (DType t : {DType::kF16, DType::kBF16, DType::kF32})
    if (name == hopgemm::name_of(t)) return t;
  throw nb::value_error(
      ("hopgemm: dtype is '" + name + "'; it must be bfloat16, float16 or float32. Cast the operands")
          .c_str());
}

// A stand-in address with the given alignment, far from all others: planning looks at nothing else of a
// pointer.
const void* address(int index, int64_t alignment) {
  return reinterpret_cast<const void*>((uintptr_t(index) << 46) + static_cast<uintptr_t>(alignment));
}

Matrix matrix(const void* data, DType dtype, const std::vector<int64_t>& strides, size_t batch_dims,
              const char* name) {
  if (strides.size() != batch_dims + 2)
    throw nb::value_error((std::string("hopgemm: ") + name + " needs " + std::to_string(batch_dims + 2) +
                           " strides, has " + std::to_string(strides.size()))
                              .c_str());
  Matrix m{data, dtype, strides[batch_dims], strides[batch_dims + 1], {}};
  for (size_t i = 0; i < batch_dims; ++i) m.batch_stride[i] = strides[i];
  return m;
}

nb::dict facts_dict(const hopgemm::DeviceFacts& f) {
  nb::dict d;
  d["name"] = f.name;
  d["compute_capability"] = nb::make_tuple(f.major, f.minor);
  d["sm_count"] = f.sm_count;
  d["max_smem_bytes"] = f.max_smem_bytes;
  d["l2_bytes"] = f.l2_bytes;
  d["dram_bytes_per_cycle"] = f.dram_bytes_per_cycle;
  d["memory_bytes"] = f.memory_bytes;
  d["driver_version"] = f.driver_version;
  return d;
}

void replace_facts(hopgemm::DeviceFacts& f, const nb::dict& facts) {
  for (auto [key, value] : facts) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "sm_count") f.sm_count = nb::cast<int>(value);
    else if (name == "max_smem_bytes") f.max_smem_bytes = nb::cast<int>(value);
    else if (name == "l2_bytes") f.l2_bytes = nb::cast<int64_t>(value);
    else if (name == "dram_bytes_per_cycle") f.dram_bytes_per_cycle = nb::cast<int>(value);
    else if (name == "memory_bytes") f.memory_bytes = nb::cast<int64_t>(value);
    else if (name == "driver_version") f.driver_version = nb::cast<int>(value);
    else if (name == "name") std::snprintf(f.name, sizeof f.name, "%s", nb::cast<std::string>(value).c_str());
    else if (name == "compute_capability") {
      nb::tuple t = nb::cast<nb::tuple>(value);
      f.major = nb::cast<int>(t[0]), f.minor = nb::cast<int>(t[1]);
    } else {
      throw nb::value_error(("hopgemm: no such device fact: '" + name + "'").c_str());
    }
  }
}

// The operands of a call, and the GPU it is for.
struct Described {
  Problem problem;
  hopgemm::DeviceFacts facts = hopgemm::h200_facts();

  Described(const std::string& dtype, const std::string& out_dtype, int64_t m, int64_t n, int64_t k,
            const std::vector<int64_t>& batch, const std::vector<int64_t>& a_strides,
            const std::vector<int64_t>& b_strides, const std::vector<int64_t>& d_strides,
            std::tuple<int64_t, int64_t, int64_t> alignment, float beta, bool c, bool bias, float alpha,
            std::optional<int> device, const nb::dict& replaced, int sm_limit, bool batch_invariant) {
    if (batch.size() > hopgemm::kMaxBatchDims)
      throw nb::value_error(("hopgemm: " + std::to_string(batch.size()) + " batch dimensions; at most " +
                             std::to_string(hopgemm::kMaxBatchDims))
                                .c_str());
    Problem& p = problem;
    p.m = m, p.n = n, p.k = k;
    p.batch_dims = static_cast<int>(batch.size());
    for (size_t i = 0; i < batch.size(); ++i) p.batch[i] = batch[i];
    const DType in = dtype_of(dtype), out = dtype_of(out_dtype);
    const auto [a_align, b_align, d_align] = alignment;
    p.a = matrix(address(1, a_align), in, a_strides, batch.size(), "a");
    p.b = matrix(address(2, b_align), in, b_strides, batch.size(), "b");
    p.d = matrix(address(3, d_align), out, d_strides, batch.size(), "out");
    if (c) p.c = matrix(address(4, 256), out, d_strides, batch.size(), "c");
    if (bias) p.bias = {address(5, 256), out, 1, {}};
    p.alpha = alpha, p.beta = beta, p.sm_limit = sm_limit, p.batch_invariant = batch_invariant;
    if (device) check(hopgemm::device_facts(*device, facts));
    replace_facts(facts, replaced);
  }
};

nb::dict plan(const std::string& dtype, const std::string& out_dtype, int64_t m, int64_t n, int64_t k,
              const std::vector<int64_t>& batch, const std::vector<int64_t>& a_strides,
              const std::vector<int64_t>& b_strides, const std::vector<int64_t>& d_strides,
              std::tuple<int64_t, int64_t, int64_t> alignment, float beta, bool c, bool bias, float alpha,
              const std::string& config, std::optional<int> device, const nb::dict& facts, int sm_limit,
              bool batch_invariant, bool tuned) {
  const Described call(dtype, out_dtype, m, n, k, batch, a_strides, b_strides, d_strides, alignment, beta, c,
                       bias, alpha, device, facts, sm_limit, batch_invariant);
  hopgemm::Plan q;
  const auto make = tuned ? hopgemm::plan_tuned : hopgemm::make_plan;
  check(make(call.problem, config.c_str(), call.facts, q));
  nb::dict d;
  d["path"] = q.path == hopgemm::Path::kEmpty ? "empty" : q.path == hopgemm::Path::kFill ? "fill" : "gemm";
  d["config"] = q.config;
  d["reason"] = q.reason;
  d["majors"] = q.majors;
  d["pack_a"] = q.pack_a;
  d["pack_b"] = q.pack_b;
  d["swapped"] = q.swapped;
  d["store"] = q.store == hopgemm::Store::kTma ? "tma" : "direct";
  d["tiles"] = q.tiles;
  d["grid"] = q.grid;
  d["waves"] = q.waves;
  d["launches"] = q.launches;
  d["workspace_bytes"] = q.workspace_bytes;
  d["flops"] = q.flops;
  d["bytes"] = q.bytes;
  return d;
}

// ---- tuning
// ---------------------------------------------------------------------------------------------------------

nb::object tuning_key(const std::string& dtype, const std::string& out_dtype, int64_t m, int64_t n, int64_t k,
                      const std::vector<int64_t>& batch, const std::vector<int64_t>& a_strides,
                      const std::vector<int64_t>& b_strides, const std::vector<int64_t>& d_strides,
                      std::tuple<int64_t, int64_t, int64_t> alignment, float beta, bool c, bool bias,
                      float alpha, std::optional<int> device, const nb::dict& facts, int sm_limit,
                      bool batch_invariant) {
  const Described call(dtype, out_dtype, m, n, k, batch, a_strides, b_strides, d_strides, alignment, beta, c,
                       bias, alpha, device, facts, sm_limit, batch_invariant);
  hopgemm::TuningKey key;
  if (!hopgemm::tuning_key(call.problem, call.facts, key)) return nb::none();
  return nb::make_tuple(hopgemm::name_of(key.dtype), hopgemm::name_of(key.out_dtype), key.majors, key.m,
                        key.n, key.k, key.batch_inner, key.batch_outer, key.sm_count, key.batch_invariant);
}

void set_tuned(const nb::list& entries) {
  std::vector<hopgemm::TunedConfig> configs;
  for (nb::handle entry : entries) {
    const auto [gpu, key_fields, config] = nb::cast<std::tuple<std::string, nb::tuple, std::string>>(entry);
    if (key_fields.size() != 10) throw nb::value_error("hopgemm: a tuning key has 10 fields");
    hopgemm::TuningKey key;
    key.dtype = dtype_of(nb::cast<std::string>(key_fields[0]));
    key.out_dtype = dtype_of(nb::cast<std::string>(key_fields[1]));
    std::snprintf(key.majors, sizeof key.majors, "%s", nb::cast<std::string>(key_fields[2]).c_str());
    int64_t* sizes[] = {&key.m, &key.n, &key.k, &key.batch_inner, &key.batch_outer};
    for (int i = 0; i < 5; ++i) *sizes[i] = nb::cast<int64_t>(key_fields[3 + i]);
    key.sm_count = nb::cast<int>(key_fields[8]);
    key.batch_invariant = nb::cast<bool>(key_fields[9]);
    configs.push_back({gpu, key, config});
  }
  hopgemm::set_tuned(configs);
}

// ---- gemm on any CUDA array
// -----------------------------------------------------------------------------------------

using Array = nb::ndarray<nb::device::cuda>;

DType dtype_of(const Array& x, const char* name) {
  const nb::dlpack::dtype t = x.dtype();
  if (t.lanes == 1 && t.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && t.bits == 16)
    return DType::kF16;
  if (t.lanes == 1 && t.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) && t.bits == 16)
    return DType::kBF16;
  if (t.lanes == 1 && t.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && t.bits == 32)
    return DType::kF32;
  throw nb::type_error(
      (std::string("hopgemm.gemm: the dtype of ") + name + " is none of bfloat16, float16, float32").c_str());
}

// (batch..., rows, cols) as it lies; batch dimensions are equal or 1 (or absent), as NumPy broadcasts.
Matrix matrix(const Array& x, const char* name, int64_t rows, int64_t cols, const Problem& p) {
  const int dims = static_cast<int>(x.ndim()), own_batch = dims - 2;
  if (dims < 2 || own_batch > p.batch_dims || static_cast<int64_t>(x.shape(dims - 2)) != rows ||
      static_cast<int64_t>(x.shape(dims - 1)) != cols)
    throw nb::value_error((std::string("hopgemm.gemm: ") + name + " must be (..., " + std::to_string(rows) +
                           ", " + std::to_string(cols) + ")")
                              .c_str());
  Matrix m{x.data(), dtype_of(x, name), x.stride(dims - 2), x.stride(dims - 1), {}};
  for (int i = 0; i < own_batch; ++i) {
    const int dim = p.batch_dims - own_batch + i;
    const int64_t size = static_cast<int64_t>(x.shape(i));
    if (size != p.batch[dim] && size != 1)
      throw nb::value_error((std::string("hopgemm.gemm: batch dimension ") + std::to_string(i) + " of " +
                             name + " is " + std::to_string(size) + ", of out " +
                             std::to_string(p.batch[dim]))
                                .c_str());
    m.batch_stride[dim] = size == 1 ? 0 : x.stride(i);
  }
  return m;
}

void gemm(const Array& a, const Array& b, const Array& out, const std::optional<Array>& c,
          const std::optional<Array>& bias, float alpha, float beta, const std::string& config, int sm_limit,
          bool batch_invariant, const std::optional<Array>& workspace, uintptr_t stream) {
  for (const auto& [x, name] : {std::pair<const Array*, const char*>{&a, "a"}, {&b, "b"}, {&out, "out"}}) {
    if (x->ndim() < 2 || x->ndim() > 2 + hopgemm::kMaxBatchDims)
      throw nb::value_error((std::string("hopgemm.gemm: ") + name + " has " + std::to_string(x->ndim()) +
                             " dimensions; 2 to 8 are taken")
                                .c_str());
    if (x->device_id() != out.device_id())
      throw nb::value_error(
          (std::string("hopgemm.gemm: ") + name + " and out are on different GPUs").c_str());
  }
  Problem p;
  p.batch_dims = static_cast<int>(out.ndim()) - 2;
  for (int i = 0; i < p.batch_dims; ++i) p.batch[i] = static_cast<int64_t>(out.shape(i));
  p.m = static_cast<int64_t>(out.shape(p.batch_dims)),
  p.n = static_cast<int64_t>(out.shape(p.batch_dims + 1));
  p.k = static_cast<int64_t>(a.shape(a.ndim() - 1));
  p.a = matrix(a, "a", p.m, p.k, p), p.b = matrix(b, "b", p.k, p.n, p), p.d = matrix(out, "out", p.m, p.n, p);
  if (beta != 0.0f && !c)
    throw nb::value_error("hopgemm.gemm: beta is not 0, and there is no c. Pass c, or beta=0");
  const std::pair<const std::optional<Array>*, const char*> others[] = {
      {&c, "c"}, {&bias, "bias"}, {&workspace, "workspace"}};
  for (const auto& [x, name] : others)
    if (*x && (*x)->device_id() != out.device_id())
      throw nb::value_error(
          (std::string("hopgemm.gemm: ") + name + " and out are on different GPUs").c_str());
  if (c) p.c = matrix(*c, "c", p.m, p.n, p);
  if (bias) {
    if (bias->ndim() != 1 || static_cast<int64_t>(bias->shape(0)) != p.n)
      throw nb::value_error(
          ("hopgemm.gemm: bias must have the shape (" + std::to_string(p.n) + ",)").c_str());
    p.bias = {bias->data(), dtype_of(*bias, "bias"), bias->stride(0), {}};
  }
  p.alpha = alpha, p.beta = beta, p.sm_limit = sm_limit, p.batch_invariant = batch_invariant;
  hopgemm::DeviceFacts f;
  check(hopgemm::device_facts(out.device_id(), f));
  hopgemm::Plan q;
  check(hopgemm::plan_tuned(p, config.c_str(), f, q));
  const int64_t given = workspace ? static_cast<int64_t>(workspace->nbytes()) : 0;
  if (config.empty() || config == "auto") check(hopgemm::fit_plan(p, f, given, q));
  if (given < q.workspace_bytes)
    throw nb::value_error(("hopgemm.gemm: operands are copied before this product, or parts of sums kept; "
                           "pass a workspace of " +
                           std::to_string(q.workspace_bytes) +
                           " bytes, 16-byte aligned (given: " + std::to_string(given) + ")")
                              .c_str());
  nb::gil_scoped_release release;
  hopgemm::DeviceGuard guard(out.device_id());
  check(guard.status());
  check(hopgemm::gemm(p, q, workspace ? workspace->data() : nullptr, reinterpret_cast<void*>(stream)));
}

}  // namespace

NB_MODULE(_core, m) {
  m.attr("XLA_FFI_API") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  m.attr("compiler") = HOPGEMM_COMPILER;
  m.attr("commit") = HOPGEMM_COMMIT;
  m.attr("max_sums_bytes") = hopgemm::kMaxSumsBytes;
  m.def("device_count", &hopgemm::device_count, "GPUs that are visible; 0 without a driver.");
  m.def("driver_version", &hopgemm::driver_version, "13000 for CUDA 13.0; 0 without a driver.");
  m.def("runtime_version", &hopgemm::runtime_version, "Version of the CUDA runtime inside.");
  m.def(
      "device_info",
      [](int device) {
        hopgemm::DeviceFacts f;
        check(hopgemm::device_facts(device, f));
        return facts_dict(f);
      },
      "device"_a, "Facts of a GPU as a dict. Raises RuntimeError where there is none.");
  m.def(
      "configs",
      [] {
        std::vector<std::string> names;
        for (int i = 0; const char* name = hopgemm::config_name(i); ++i) names.push_back(name);
        return names;
      },
      "Names of the compiled kernels.");
  m.def(
      "warmup",
      [](int device) {
        hopgemm::DeviceFacts f;
        check(hopgemm::device_facts(device, f));
        nb::gil_scoped_release release;
        hopgemm::DeviceGuard guard(device);
        check(guard.status());
        check(hopgemm::warmup());
      },
      "device"_a, "Loads every kernel onto a GPU.");
  m.def("plan", &plan, "dtype"_a, "out_dtype"_a, "m"_a, "n"_a, "k"_a, "batch"_a, "a_strides"_a, "b_strides"_a,
        "d_strides"_a, nb::kw_only(), "alignment"_a = std::make_tuple(256, 256, 256), "beta"_a = 0.0f,
        "c"_a = false, "bias"_a = false, "alpha"_a = 1.0f, "config"_a = "", "device"_a = nb::none(),
        "facts"_a = nb::dict(), "sm_limit"_a = 0, "batch_invariant"_a = false, "tuned"_a = true,
        "What would run, and why, as a dict. Strides are in elements: [*batch, row, col]. `tuned`: may the "
        "table of set_tuned() answer?");
  m.def("tuning_key", &tuning_key, "dtype"_a, "out_dtype"_a, "m"_a, "n"_a, "k"_a, "batch"_a, "a_strides"_a,
        "b_strides"_a, "d_strides"_a, nb::kw_only(), "alignment"_a = std::make_tuple(256, 256, 256),
        "beta"_a = 0.0f, "c"_a = false, "bias"_a = false, "alpha"_a = 1.0f, "device"_a = nb::none(),
        "facts"_a = nb::dict(), "sm_limit"_a = 0, "batch_invariant"_a = false,
        "What a tuned config depends on: (dtype, out_dtype, majors, m, n, k, batch_inner, batch_outer, "
        "sm_count, batch_invariant) as the kernel sees them, or None where none runs.");
  m.def("set_tuned", &set_tuned, "entries"_a,
        "Replaces the table that answers before the selector: [(gpu, tuning_key, config)].");
  m.def("gemm", &gemm, "a"_a, "b"_a, "out"_a, nb::kw_only(), "c"_a = nb::none(), "bias"_a = nb::none(),
        "alpha"_a = 1.0f, "beta"_a = 0.0f, "config"_a = "", "sm_limit"_a = 0, "batch_invariant"_a = false,
        "workspace"_a = nb::none(), "stream"_a = 0,
        "out = alpha * a @ b + beta * c + bias on any CUDA arrays that speak DLPack; `stream` is a CUDA "
        "stream's address.");
  m.def(
      "roof",
      [](int device, double seconds) {
        nb::gil_scoped_release release;
        hopgemm::DeviceGuard guard(device);
        check(guard.status());
        double tflops = 0;
        check(hopgemm::measure_roof(seconds, tflops));
        return tflops;
      },
      "device"_a, "seconds"_a = 1.0,
      "TFLOP/s of wgmma on random shared memory with no loads: the tensor-core roof. Waits.");
  m.def(
      "xla_handlers",
      [] {
        nb::dict d;
        d["hopgemm.matmul.v1"] = nb::capsule(reinterpret_cast<void*>(&hopgemm_xla_matmul));
        return d;
      },
      "XLA FFI handlers by target name.");
}
