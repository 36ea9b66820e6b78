// libtorch's stable C ABI (torch 2.10 and later): the few functions that are called, declared here and found
// with dlsym, so that nothing of torch is needed to build or to load this library. Owns the lifetimes of
// tensor handles and the encodings of StableIValue; knows nothing of matrix products.
#pragma once
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace torch_abi {

using Handle = void*;    // AtenTensorHandle: an at::Tensor*, owned by whoever holds it
using Library = void*;   // TorchLibraryHandle, kept for the life of the process
using Value = uint64_t;  // StableIValue: one slot of the stack
using Kernel = void (*)(Value* stack, uint64_t num_args, uint64_t num_outputs);

// Numbers of c10 enums, frozen by torch's serialization format.
enum ScalarType : int32_t { kByte = 0, kHalf = 5, kFloat = 6, kBFloat16 = 15 };
enum DeviceType : int32_t { kCpu = 0, kCuda = 1 };

struct Api {
  int32_t (*get_data_ptr)(Handle, void**);
  int32_t (*get_dim)(Handle, int64_t*);
  int32_t (*get_sizes)(Handle, int64_t**);
  int32_t (*get_strides)(Handle, int64_t**);
  int32_t (*get_dtype)(Handle, int32_t*);
  int32_t (*get_device_type)(Handle, int32_t*);
  int32_t (*get_device_index)(Handle, int32_t*);
  int32_t (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*);
  int32_t (*new_tensor_handle)(Handle, Handle*);  // another handle of the same tensor
  int32_t (*delete_tensor)(Handle);
  int32_t (*library_init_impl)(const char*, const char*, const char*, uint32_t, Library*);
  int32_t (*library_impl)(Library, const char*, Kernel);
  int32_t (*library_delete)(Library);  // takes its kernels away
  int32_t (*string_c_str)(void*, const char**);
  int32_t (*delete_string)(void*);
  int32_t (*create_device_guard)(int32_t, void**);
  int32_t (*delete_device_guard)(void*);
  int32_t (*delete_stable_ivalue)(Value*);  // 2.13; before it, the box is a plain `new uint64_t`
  const char* (*exception_what)();          // 2.13
};

inline Api load_api() {
  Api api{};
  void* lib = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!lib) throw std::runtime_error("hopgemm: libtorch_cpu.so is not loaded; import torch first");
  auto find = [&](auto& function, const char* name, bool required = true) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(lib, name));
    if (!function && required)
      throw std::runtime_error(std::string("hopgemm: this torch has no ") + name +
                               "; torch 2.10 or later is needed");
  };
  find(api.get_data_ptr, "aoti_torch_get_data_ptr");
  find(api.get_dim, "aoti_torch_get_dim");
  find(api.get_sizes, "aoti_torch_get_sizes");
  find(api.get_strides, "aoti_torch_get_strides");
  find(api.get_dtype, "aoti_torch_get_dtype");
  find(api.get_device_type, "aoti_torch_get_device_type");
  find(api.get_device_index, "aoti_torch_get_device_index");
  find(api.empty_strided, "aoti_torch_empty_strided");
  find(api.new_tensor_handle, "aoti_torch_new_tensor_handle");
  find(api.delete_tensor, "aoti_torch_delete_tensor_object");
  find(api.library_init_impl, "aoti_torch_library_init_impl");
  find(api.library_impl, "aoti_torch_library_impl");
  find(api.library_delete, "aoti_torch_delete_library_object");
  find(api.string_c_str, "torch_string_c_str");
  find(api.delete_string, "torch_delete_string");
  find(api.create_device_guard, "aoti_torch_create_device_guard");
  find(api.delete_device_guard, "aoti_torch_delete_device_guard");
  find(api.delete_stable_ivalue, "torch_delete_stable_ivalue", false);
  find(api.exception_what, "torch_exception_get_what_without_backtrace", false);
  return api;
}

inline const Api& api() {
  static const Api loaded = load_api();
  return loaded;
}

// Throws what torch said. Before 2.13 torch kept no message: it went to stderr.
inline void check(int32_t error, const char* what) {
  if (!error) return;
  const char* message = api().exception_what ? api().exception_what() : nullptr;
  throw std::runtime_error(std::string("hopgemm: ") + what + (message && *message ? ": " : " failed") +
                           (message ? message : ""));
}

// Owns one tensor handle.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Handle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_) api().delete_tensor(handle_);
  }
  explicit operator bool() const { return handle_; }
  Handle get() const { return handle_; }
  Handle release() { return std::exchange(handle_, nullptr); }

 private:
  Handle handle_ = nullptr;
};

// What a kernel reads of a tensor, asked once. Valid while the tensor lives.
struct View {
  void* data = nullptr;
  int64_t dim = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0, device_type = 0, device_index = 0;

  View() = default;
  explicit View(const Tensor& t) : View(t.get()) {}
  explicit View(Handle t) {
    const Api& torch = api();
    int64_t *size = nullptr, *stride = nullptr;
    int32_t error = torch.get_data_ptr(t, &data) | torch.get_dim(t, &dim) | torch.get_sizes(t, &size) |
                    torch.get_strides(t, &stride) | torch.get_dtype(t, &dtype) |
                    torch.get_device_type(t, &device_type) | torch.get_device_index(t, &device_index);
    check(error, "reading a tensor");
    sizes = size, strides = stride;
  }
};

constexpr int64_t kMaxDims = 8;

// A new dense tensor on the device of `like`, from torch's allocator and for the current stream: contiguous,
// or its matrices column by column.
inline Tensor empty(int64_t dim, const int64_t* sizes, int32_t dtype, const View& like,
                    bool by_column = false) {
  if (dim > kMaxDims) throw std::invalid_argument("hopgemm: more than 8 dimensions");
  int64_t strides[kMaxDims], elems = 1;
  for (int64_t order = dim - 1; order >= 0; --order) {
    const int64_t i = by_column && order >= dim - 2 ? 2 * dim - 3 - order : order;
    strides[i] = elems;
    elems *= sizes[i] > 1 ? sizes[i] : 1;
  }
  Handle out = nullptr;
  check(api().empty_strided(dim, sizes, strides, dtype, like.device_type, like.device_index, &out),
        "allocation");
  return Tensor(out);
}

// StableIValue -> C++. Each consumes what the slot owns.
// HAZARD: take every slot into an owner before anything can throw, else an error leaks the rest.
template <class T> T take(Value value);
template <> inline Tensor take(Value value) { return Tensor(reinterpret_cast<Handle>(value)); }
template <> inline int64_t take(Value value) { return static_cast<int64_t>(value); }
template <> inline int32_t take(Value value) { return static_cast<int32_t>(value); }
template <> inline bool take(Value value) { return static_cast<uint8_t>(value) != 0; }
template <> inline double take(Value value) {
  double number;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

// A string of the dispatcher, read in place.
class Text {
 public:
  explicit Text(Value value) : handle_(reinterpret_cast<void*>(value)) {}
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  ~Text() { api().delete_string(handle_); }
  const char* c_str() const {
    const char* text = "";
    check(api().string_c_str(handle_, &text), "reading a string");
    return text;
  }

 private:
  void* handle_;
};

// An optional is 0, or the address of a heap box that holds the value's own encoding and belongs to the
// callee.
template <class T> T take_or(Value value, T none) {
  if (!value) return none;
  Value* box = reinterpret_cast<Value*>(value);
  T taken = take<T>(*box);
  if (api().delete_stable_ivalue) api().delete_stable_ivalue(box);
  else delete box;
  return taken;
}

inline Value give(Tensor&& t) { return reinterpret_cast<Value>(t.release()); }

// Makes a CUDA device current for a scope, as torch counts devices.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t index) { check(api().create_device_guard(index, &guard_), "device guard"); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() { api().delete_device_guard(guard_); }

 private:
  void* guard_ = nullptr;
};

// HAZARD: only libtorch_cuda.so defines this function: asked for when this library loads, it would need CUDA
// everywhere.
inline void* current_cuda_stream(int32_t device_index) {
  using Get = int32_t (*)(int32_t, void**);
  static const Get get = [] {
    void* lib = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return lib ? reinterpret_cast<Get>(dlsym(lib, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  if (!get) throw std::runtime_error("hopgemm: this torch was built without CUDA");
  void* stream = nullptr;
  check(get(device_index, &stream), "asking for the current CUDA stream");
  return stream;
}

}  // namespace torch_abi
