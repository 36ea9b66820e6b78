// The body of every __global__ function (config/generate_instances.py writes those, one per config, with a
// name that profilers can show): align shared memory, make the barriers, send each warpgroup into its role.
// Nothing else.
#pragma once
#include "hw/ptx/hw.cuh"
#include "kernel/consumer.h"
#include "kernel/cta.h"
#include "kernel/producer.h"

namespace hopgemm {

template <KernelConfig kConfig>
__device__ __forceinline__ void gemm_kernel(const GemmParams<CUtensorMap>& params) {
  static_assert(is_valid(kConfig));
  static_assert(Hardware<PtxHw<kConfig>>);
  extern __shared__ uint8_t shared[];
  const uint32_t raw = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t smem = (raw + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
  // One value for the whole warp, and known to the compiler as such.
  const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  PtxHw<kConfig> hw(smem, warpgroup < kNumConsumers ? warpgroup : -1);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&params.a);
    ptx::prefetch_tensormap(&params.b);
  }
  enter(hw, params.split);

  // HAZARD: consumers first. With the producer's branch first ptxas serializes every wgmma (C7510).
  if (warpgroup < kNumConsumers) {
    ptx::setmaxnreg_inc<consumer_registers(kConfig)>();
    consume(hw, params);
  } else {
    ptx::setmaxnreg_dec<producer_registers(kConfig)>();
    if (threadIdx.x == kNumConsumers * kWarpgroup) produce(hw, params);
  }
}

}  // namespace hopgemm
