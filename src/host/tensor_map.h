// Encodes the three tensor maps of a launch: host arithmetic, about 0.1 us each, passed to the kernel by
// value.
#pragma once
#include <cuda.h>

#include "host/normal_form.h"

namespace hopgemm {

HOPGEMM_API Status encode_tensor_maps(const NormalProblem& problem, const KernelConfig& config,
                                      CUtensorMap& a, CUtensorMap& b, CUtensorMap& d);

}  // namespace hopgemm
