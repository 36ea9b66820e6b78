#include "bindings/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include "host/device.h"

namespace hopgemm {

int runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

DeviceGuard::DeviceGuard(int device) : previous_(device) {
  cudaError_t e = cudaGetDevice(&previous_);
  if (e == cudaSuccess && previous_ != device) e = cudaSetDevice(device);
  if (e == cudaSuccess) return;
  cudaGetLastError();
  status_ = cuda_failure(e, "cudaSetDevice");
}

DeviceGuard::~DeviceGuard() {
  int current = previous_;
  cudaGetDevice(&current);
  if (current != previous_) cudaSetDevice(previous_);
}

}  // namespace hopgemm
