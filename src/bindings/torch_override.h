// The kernels that stand at the backend's key of aten::mm, bmm, addmm, baddbmm and their .out forms while a
// hopgemm.torch.override() is active, and the one rule of which calls they take (`decide`). What they leave
// goes to the kernel that was there before. Installing and removing them in order is _torch_aten.py's.
#pragma once
#include <atomic>
#include <initializer_list>
#include <optional>

#include "bindings/torch_problem.h"
#include "bindings/torch_python.h"

namespace hopgemm::torch_ops {

// ---- which calls are taken ----

struct Policy {
  bool active = false;
  bool batch_invariant = false;  // serving: every call that the kernel can run, whatever it costs
  int32_t sm_limit = 0;
};
// HAZARD: of the process, not of a thread: the backward of CUDA tensors runs on threads of autograd's own.
inline std::atomic<Policy> policy;
static_assert(std::atomic<Policy>::is_always_lock_free);

// Why a call was left, or that it was taken. kOff is not counted.
enum Outcome {
  kTaken,
  kDtype,
  kArguments,
  kUnsupportedGpu,
  kLayout,
  kEmptyProduct,
  kSlower,
  kRefused,
  kNumOutcomes,
  kOff
};
inline constexpr const char* kOutcomes[kNumOutcomes] = {"taken",  "dtype", "arguments", "device",
                                                        "layout", "empty", "slower",    "refused"};

inline Outcome decide(const Problem& problem, const Status& status, const Plan& plan) {
  if (status.code == Code::kInvalidArgument) return kRefused;
  if (!status.ok()) return kUnsupportedGpu;
  if (problem.batch_invariant) return kTaken;
  if (plan.path != Path::kGemm) return kEmptyProduct;
  if (plan.pack_a || plan.pack_b) return kLayout;
  return plan.slower ? kSlower : kTaken;
}

// d = alpha * a @ b + beta * c (`c` may be nullptr) by the kernel, if it takes the call. kArguments: torch
// has the words for it.
inline Outcome attempt(const View& a, const View& b, Handle c_handle, Handle d_handle, double alpha,
                       double beta) {
  const Policy now = policy.load(std::memory_order_relaxed);
  if (!now.active) return kOff;
  if (a.dtype != kBFloat16 && a.dtype != kHalf) return kDtype;
  const View d(d_handle), c = c_handle ? View(c_handle) : View();
  if (d.dtype != a.dtype || (c_handle && c.dtype != a.dtype)) return kArguments;
  try {
    Normalized n(a, b);
    n.set_out(d);
    if (c_handle && c.dim == 1 && c.sizes[0] == n.problem.n && beta == 1) n.add_bias(c);
    else if (c_handle) n.add_c(c), n.problem.beta = static_cast<float>(beta);
    n.problem.alpha = static_cast<float>(alpha);
    n.problem.batch_invariant = now.batch_invariant, n.problem.sm_limit = now.sm_limit;
    const Device device(n.a);
    Plan plan;
    const Status status = device.plan(n.problem, "", plan);
    const Outcome outcome = decide(n.problem, status, plan);
    if (outcome == kTaken) device.enqueue(n.problem, plan);
    return outcome;
  } catch (const std::invalid_argument&) {
    return kArguments;
  }
}

// Are these the operands of mm (2 dimensions) or bmm (3)? Gives the shape of the result.
inline bool is_product(const View& a, const View& b, int64_t dim, int64_t sizes[3]) {
  if (a.dim != dim || b.dim != dim || a.dtype != b.dtype) return false;
  if (a.sizes[dim - 1] != b.sizes[dim - 2] || (dim == 3 && a.sizes[0] != b.sizes[0])) return false;
  std::copy(a.sizes, a.sizes + dim - 1, sizes);
  sizes[dim - 1] = b.sizes[dim - 1];
  return true;
}

// ---- the operators, and what was there before ----

using NativeMm = int32_t (*)(Handle out, Handle a, Handle b);
using NativeAddmm = int32_t (*)(Handle out, Handle c, Handle a, Handle b, double beta, double alpha);

struct Override {
  const char* name;
  Library library = nullptr;
  python::Object* previous = nullptr;  // for mm and bmm it takes a list of capsules
  void* native = nullptr;  // torch's own kernel, if `previous` is that, without the dispatcher and Python
  std::atomic<int64_t> counts[kNumOutcomes] = {};

  void count(Outcome outcome) {
    if (outcome != kOff) counts[outcome].fetch_add(1, std::memory_order_relaxed);
  }
};
inline python::Object* tensors_from_capsules = nullptr;  // takes a list, gives a list
// By index: bit 0 is the .out form, bit 1 a batch, bit 2 an addend.
inline Override overrides[] = {{"mm"},    {"mm.out"},    {"bmm"},     {"bmm.out"},
                               {"addmm"}, {"addmm.out"}, {"baddbmm"}, {"baddbmm.out"}};
inline constexpr int kNumOverrides = 8;
constexpr int override_index(int dim, bool addend, bool out) { return addend * 4 + (dim == 3) * 2 + out; }

// A tensor of Python's, without a reference. HAZARD: relies on an at::Tensor being one pointer to its
// TensorImpl, which is what `_cdata` gives.
class Borrowed {
 public:
  explicit Borrowed(python::Object* tensor) {
    const python::Api& py = python::api();
    static python::Object* const name = py.intern("_cdata");
    python::Object* address = py.get_attr(tensor, name);
    if (address) impl_ = py.as_pointer(address), py.decref(address);
    if (!impl_) throw std::runtime_error("hopgemm: not a tensor: " + python::take_error());
  }
  Handle get() { return &impl_; }

 private:
  void* impl_ = nullptr;
};

// A new result; false where there is no memory for it: torch's kernel then raises in its own words.
inline bool try_empty(int64_t dim, const int64_t* sizes, const View& like, Tensor& result) {
  try {
    result = empty(dim, sizes, like.dtype, like);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

// ---- mm, bmm: C kernels ----

// Calls what was there before through Python: rare, or another overrider. Its words become a RuntimeError: no
// C function of torch lets an exception's type through.
inline Tensor call_previous(python::Object* previous, std::initializer_list<Handle> tensors) {
  const python::Api& py = python::api();
  python::Gil gil;
  python::Object* list = py.list_new(static_cast<long>(tensors.size()));
  long i = 0;
  for (Handle tensor : tensors) {
    Handle copy = nullptr;
    check(api().new_tensor_handle(tensor, &copy), "a handle");
    py.list_set(list, i++, py.capsule(copy, nullptr, nullptr));
  }
  python::Object* result = py.call_objects(previous, list, nullptr);
  py.decref(list);
  if (!result) throw std::runtime_error(python::take_error());
  Handle handle = nullptr;
  check(api().new_tensor_handle(Borrowed(result).get(), &handle), "a handle");
  py.decref(result);
  return Tensor(handle);
}

template <int kDim, bool kOut> void override_mm(Value* s, uint64_t, uint64_t) {
  Tensor a = take<Tensor>(s[0]), b = take<Tensor>(s[1]), out = kOut ? take<Tensor>(s[2]) : Tensor();
  Override& self = overrides[override_index(kDim, false, kOut)];
  const View va(a), vb(b);
  int64_t sizes[3];
  Outcome outcome = policy.load(std::memory_order_relaxed).active ? kArguments : kOff;
  bool usual = is_product(va, vb, kDim, sizes);
  if (usual && !kOut) usual = try_empty(kDim, sizes, va, out);
  if (usual) outcome = attempt(va, vb, nullptr, out.get(), 1, 0);
  self.count(outcome);
  if (outcome != kTaken) {
    const auto native = reinterpret_cast<NativeMm>(self.native);
    const bool done = usual && outcome != kArguments && native && native(out.get(), a.get(), b.get()) == 0;
    if (!done && kOut) out = call_previous(self.previous, {a.get(), b.get(), out.get()});
    else if (!done) out = call_previous(self.previous, {a.get(), b.get()});
  }
  s[0] = give(std::move(out));
}

// ---- addmm, baddbmm: functions for Python, because no StableIValue holds their Scalars ----

// Reads a Scalar that a float holds; false for any other (torch judges it).
inline bool read_scalar(python::Object* kwargs, python::Object* name, double& value) {
  const python::Api& py = python::api();
  python::Object* given = py.dict_get(kwargs, name);
  if (!given) return true;
  value = py.as_double(given);
  const bool failed = value == -1.0 && py.error();
  if (failed) py.clear_error();
  return !failed && fits_float(value);
}

inline python::Object* to_python(Tensor&& t) {
  const python::Api& py = python::api();
  python::Object* list = py.list_new(1);
  py.list_set(list, 0, py.capsule(t.release(), nullptr, nullptr));
  python::Object* tensors = py.call_objects(tensors_from_capsules, list, nullptr);
  py.decref(list);
  if (!tensors) return nullptr;
  python::Object* result = py.list_get(tensors, 0);
  py.incref(result);
  py.decref(tensors);
  return result;
}

template <int kDim, bool kOut>
python::Object* override_addmm(python::Object* previous, python::Object* args, python::Object* kwargs) {
  const python::Api& py = python::api();
  static python::Object *const name_alpha = py.intern("alpha"), *const name_beta = py.intern("beta"),
                               *const name_out = py.intern("out");
  Override& self = overrides[override_index(kDim, true, kOut)];
  python::Object* out_object = kOut && kwargs ? py.dict_get(kwargs, name_out) : nullptr;
  double alpha = 1, beta = 1;
  bool usual = py.tuple_size(args) == 3 && (!kOut || out_object);
  if (kwargs && py.dict_size(kwargs) > kOut)  // a lookup costs 0.05 us, and most calls give no Scalar
    usual = usual && read_scalar(kwargs, name_alpha, alpha) && read_scalar(kwargs, name_beta, beta);
  Outcome outcome = policy.load(std::memory_order_relaxed).active ? kArguments : kOff;
  Tensor fresh;
  try {
    int64_t sizes[3];
    if (usual) {
      Borrowed c(py.tuple_get(args, 0)), a(py.tuple_get(args, 1)), b(py.tuple_get(args, 2));
      std::optional<Borrowed> given;
      if (kOut) given.emplace(out_object);
      const View va(a.get()), vb(b.get());
      usual = is_product(va, vb, kDim, sizes);
      if (usual) {
        python::WithoutGil released;
        usual = kOut || try_empty(kDim, sizes, va, fresh);
        const Handle out = kOut ? given->get() : fresh.get();
        if (usual) outcome = attempt(va, vb, c.get(), out, alpha, beta);
        const auto native = reinterpret_cast<NativeAddmm>(self.native);
        if (usual && outcome != kTaken)
          usual = outcome != kArguments && native && native(out, c.get(), a.get(), b.get(), beta, alpha) == 0;
      }
    }
  } catch (const std::exception& e) {
    py.set_error(*py.runtime_error, e.what());
    return nullptr;
  }
  self.count(outcome);
  if (!usual) return py.call(previous, args, kwargs);  // again, for torch's own words
  if (!kOut) return to_python(std::move(fresh));
  py.incref(out_object);
  return out_object;
}

// ---- installing ----

inline const char* outcome_name(int index) { return index < kNumOutcomes ? kOutcomes[index] : nullptr; }
inline const char* override_name(int index) {
  return index < kNumOverrides ? overrides[index].name : nullptr;
}
inline int64_t override_count(int index, int outcome) { return overrides[index].counts[outcome].load(); }

inline void keep(python::Object*& slot, python::Object* object) {
  python::api().incref(object);
  if (slot) python::api().decref(slot);
  slot = object;
}

inline void prepare_override(int index, python::Object* previous, bool is_torchs, python::Object* steal) {
  Override& o = overrides[index];
  keep(o.previous, previous);
  keep(tensors_from_capsules, steal);
  // torch's own kernels by the names of its C shim: "aoti_torch_cuda_mm_out".
  const bool cpu = kDevice == kCpu;
  const std::string name = o.name, base = name.substr(0, name.find('.'));
  void* lib = dlopen(cpu ? "libtorch_cpu.so" : "libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  const std::string symbol = std::string("aoti_torch_") + (cpu ? "cpu_" : "cuda_") + base + "_out";
  o.native = lib && is_torchs ? dlsym(lib, symbol.c_str()) : nullptr;
}

inline void install_override(int index) {
  static constexpr Kernel kKernels[] = {override_mm<2, false>, override_mm<2, true>, override_mm<3, false>,
                                        override_mm<3, true>};
  Override& o = overrides[index];
  check(api().library_init_impl("aten", kDispatchKey, "hopgemm", 0, &o.library), "torch library");
  check(api().library_impl(o.library, o.name, kKernels[index]), o.name);
}

inline void remove_override(int index) {
  Override& o = overrides[index];
  if (o.library) api().library_delete(o.library);
  o.library = nullptr;
}

inline python::Object* python_kernel(int index) {
  static python::MethodDef methods[] = {
      {"addmm", override_addmm<2, false>, python::kVarargsAndKeywords, ""},
      {"addmm_out", override_addmm<2, true>, python::kVarargsAndKeywords, ""},
      {"baddbmm", override_addmm<3, false>, python::kVarargsAndKeywords, ""},
      {"baddbmm_out", override_addmm<3, true>, python::kVarargsAndKeywords, ""}};
  return python::api().function(&methods[index - 4], overrides[index].previous, nullptr);
}

}  // namespace hopgemm::torch_ops
