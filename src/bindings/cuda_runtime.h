// The little of the CUDA runtime that the Python module needs, from the copy inside libhopgemm.so: a second static runtime
// in _core would be a second state.
#pragma once
#include "api/gemm.h"

namespace hopgemm {

HOPGEMM_API int runtime_version();

// Makes `device` current while it lives.
class HOPGEMM_API DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;

 private:
  int previous_;
};

}  // namespace hopgemm
