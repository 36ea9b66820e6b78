// The little of the CUDA runtime that the Python module needs, from the copy inside libhopgemm.so: a second
// static runtime in _core would be a second state.
#pragma once
#include "api/gemm.h"

namespace hopgemm {

HOPGEMM_API int runtime_version();

// Makes `device` current while it lives, where status() is ok.
class HOPGEMM_API DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  const Status& status() const { return status_; }

 private:
  Status status_;
  int previous_;
};

}  // namespace hopgemm
