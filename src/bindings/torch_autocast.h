// torch's cache of what an autocast region casts: at::autocast::cached_cast, as aten::linear calls it. It has
// no name in the C ABI and none in Python, so it is found by its C++ one, and may be missing.
#pragma once
#include "bindings/torch_abi.h"

namespace torch_abi {

// An at::Tensor by value. HAZARD: relies on it being one pointer to its TensorImpl.
struct TensorValue {
  void* impl;
  ~TensorValue() {}  // not trivial, as at::Tensor's: so it is returned the same way, in memory of the caller
};
using CachedCast = TensorValue (*)(int8_t dtype, const void* tensor, int8_t device_type);

inline CachedCast find_cached_cast() {
  void* lib = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  const char name[] = "_ZN2at8autocast11cached_castEN3c1010ScalarTypeERKNS_6TensorENS1_10DeviceTypeE";
  return lib ? reinterpret_cast<CachedCast>(dlsym(lib, name)) : nullptr;
}

inline bool has_autocast_cast() { return find_cached_cast() != nullptr; }

// `t` in the `dtype` of the autocast region on its device, part of autograd's graph. Only where
// `has_autocast_cast()`.
inline Tensor autocast_cast(const Tensor& t, int32_t dtype) {
  static const CachedCast cast = find_cached_cast();
  const TensorValue value =
      cast(static_cast<int8_t>(dtype), t.get(), static_cast<int8_t>(View(t).device_type));
  return Tensor(new void*(value.impl));  // what a handle is: an at::Tensor on the heap
}

}  // namespace torch_abi
