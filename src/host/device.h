// What is asked of the CUDA runtime and driver, once, and kept: immutable facts per device and per (device,
// kernel).
#pragma once
#include <cuda.h>  // types only: libcuda is never linked

#include "config/instances.h"
#include "host/status.h"

namespace hopgemm {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

EncodeTiled encode_tiled();  // nullptr without a driver

// Makes the context of the current device current on this thread. The runtime's functions do so by
// themselves; the driver's fail with CUDA_ERROR_INVALID_CONTEXT where none has.
Status bind_context();

HOPGEMM_API Status cuda_failure(int error, const char* what);

// Loads the kernel on the current device, gives it its shared memory, and asks how many clusters are resident
// at once where a cluster splits K `split` ways. Legal during a stream capture.
Status prepare(int device, const Instance& instance, int split, int& max_clusters);

}  // namespace hopgemm
