// Encodes the tensor maps of a launch: host arithmetic, about 0.1 us each, passed to the kernel by value.
#pragma once
#include <cuda.h>

#include "host/normal_form.h"

namespace hopgemm {

HOPGEMM_API Status encode_tensor_maps(const NormalProblem& problem, const KernelConfig& config,
                                      CUtensorMap& a, CUtensorMap& b, CUtensorMap& d);

// The matrix of a tail's sums (tail.h): `rows` of a tile's width.
HOPGEMM_API Status encode_sums_map(const KernelConfig& config, const void* data, int64_t rows,
                                   CUtensorMap& sums);

}  // namespace hopgemm
