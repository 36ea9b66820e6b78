// The tensor-core roof that a benchmark compares with: wgmma on random shared memory, with no loads, no
// barriers, no stores. What it reaches under the board's power limit no product can pass.
#pragma once
#include "api/gemm.h"

namespace hopgemm {

// Runs on the current device for about `seconds` and waits; m64n256k16 bf16 from shared memory, two
// warpgroups an SM.
HOPGEMM_API Status measure_roof(double seconds, double& tflops);

}  // namespace hopgemm
