// The body of every __global__ function (config/generate_instances.py writes those, one per config, with a
// name that profilers can show): make the barriers, send each warpgroup into its role. Nothing else.
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
  const int warp = warp_index(), warpgroup = warp / kWarpsPerGroup;
  PtxHw<kConfig> hw(smem_base(), warpgroup < kNumConsumers ? warpgroup : -1);
  if (threadIdx.x == 0) {
    ptx::prefetch_tensormap(&params.a);
    ptx::prefetch_tensormap(&params.b);
  }
  Tile first{};
  if (warp == kProducerWarp) first = same_in_warp(first_tile(hw, params));
  enter(hw, params.grid.split);

  // HAZARD: consumers first. With the producer's branch first ptxas serializes every wgmma (C7510).
  if (warpgroup < kNumConsumers) {
    ptx::setmaxnreg_inc<consumer_registers(kConfig)>();
    consume(hw, params);
  } else {
    ptx::setmaxnreg_dec<producer_registers(kConfig)>();
    if (warp == kProducerWarp && ptx::elect_one()) produce(hw, params, first);
  }
}

}  // namespace hopgemm
