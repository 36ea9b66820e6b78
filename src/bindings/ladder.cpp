// hopgemm._rungs: the ladder's kernels in Python. Thin: check shapes, fill a Call, turn a Status into an
// exception.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings/cuda_runtime.h"
#include "ladder/rung.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using hopgemm::DType;
using hopgemm::ladder::Call;
using hopgemm::ladder::Rung;
using Array = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cuda>;

void check(const hopgemm::Status& s) {
  if (s.ok()) return;
  if (s.code == hopgemm::Code::kInvalidArgument) throw nb::value_error(s.message);
  throw std::runtime_error(s.message);
}

const Rung& find(const std::string& name) {
  std::string names;
  for (int i = 0; i < hopgemm::ladder::kNumRungs; ++i) {
    const Rung& rung = *hopgemm::ladder::kRungs[i];
    if (name == rung.name) return rung;
    names += (i ? ", " : "") + std::string(rung.name);
  }
  throw nb::value_error(("hopgemm ladder: there is no rung '" + name + "'. Take one of " + names).c_str());
}

DType dtype_of(const Array& x, const char* name) {
  const nb::dlpack::dtype t = x.dtype();
  const auto is = [&](nb::dlpack::dtype_code code) {
    return t.lanes == 1 && t.bits == 16 && t.code == static_cast<uint8_t>(code);
  };
  if (is(nb::dlpack::dtype_code::Float)) return DType::kF16;
  if (is(nb::dlpack::dtype_code::Bfloat)) return DType::kBF16;
  throw nb::type_error(
      (std::string("hopgemm ladder: the dtype of ") + name + " is neither bfloat16 nor float16").c_str());
}

void run(const std::string& name, const Array& a, const Array& b, const Array& out, uintptr_t stream) {
  const Rung& rung = find(name);
  const size_t m = out.shape(0), n = out.shape(1), k = a.shape(1);
  if (a.shape(0) != m || b.shape(0) != n || b.shape(1) != k)
    throw nb::value_error(("hopgemm ladder: a is (" + std::to_string(a.shape(0)) + ", " + std::to_string(k) +
                           "), b is (" + std::to_string(b.shape(0)) + ", " + std::to_string(b.shape(1)) +
                           "), out is (" + std::to_string(m) + ", " + std::to_string(n) +
                           "); they must be (M, K), (N, K) and (M, N)")
                              .c_str());
  constexpr size_t kMaxSize = 1 << 20;  // tiles and their product fit into 32 bits
  if (m > kMaxSize || n > kMaxSize || k > kMaxSize)
    throw nb::value_error("hopgemm ladder: M, N and K may be 1048576 at most");
  const DType dtype = dtype_of(out, "out");
  if (dtype_of(a, "a") != dtype || dtype_of(b, "b") != dtype)
    throw nb::type_error("hopgemm ladder: a, b and out must have one dtype. Cast them");
  if (a.device_id() != out.device_id() || b.device_id() != out.device_id())
    throw nb::value_error("hopgemm ladder: a, b and out must be on one GPU");
  const Call call{
      dtype, a.data(), b.data(), out.data(), static_cast<int>(m), static_cast<int>(n), static_cast<int>(k)};
  nb::gil_scoped_release release;
  hopgemm::DeviceGuard guard(out.device_id());
  check(guard.status());
  check(hopgemm::ladder::run(rung, call, reinterpret_cast<void*>(stream)));
}

nb::list rungs() {
  nb::list all;
  for (int i = 0; i < hopgemm::ladder::kNumRungs; ++i) {
    const Rung& rung = *hopgemm::ladder::kRungs[i];
    nb::list dtypes;
    if (rung.bf16) dtypes.append("bf16");
    if (rung.fp16) dtypes.append("fp16");
    nb::dict d;
    d["rung"] = rung.name;
    d["name"] = rung.idea;
    d["steps"] = nb::make_tuple(rung.step_m, rung.step_n, rung.step_k);
    d["dtypes"] = dtypes;
    all.append(d);
  }
  return all;
}

}  // namespace

NB_MODULE(_rungs, m) {
  m.def("rungs", &rungs,
        "The rungs, in order: dicts of rung, name, steps (what M, N and K must be multiples of), dtypes.");
  m.def("run", &run, "rung"_a, "a"_a, "b"_a, "out"_a, "stream"_a = 0,
        "out (M, N) = a (M, K) @ b (N, K).T by one rung, on dense CUDA arrays of one 16-bit dtype; `stream` "
        "is a CUDA "
        "stream's address. Waits for nothing. Raises ValueError, TypeError, RuntimeError.");
}
