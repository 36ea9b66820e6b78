#include "bindings/cuda_runtime.h"

#include <cuda_runtime_api.h>

namespace hopgemm {

int runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return version;
}

DeviceGuard::DeviceGuard(int device) : previous_(device) {
  cudaGetDevice(&previous_);
  if (previous_ != device) cudaSetDevice(device);
}

DeviceGuard::~DeviceGuard() {
  int current = previous_;
  cudaGetDevice(&current);
  if (current != previous_) cudaSetDevice(previous_);
}

}  // namespace hopgemm
