// From the roles of a rung to its __global__ function and its row in the table. A rung is a struct:
//   config(dtype)   its KernelConfig
//   kSchedule, kPersistent     its walk over the tiles
//   kConsumers      warpgroups that multiply; kProducer: threads of the producer (0, 32 or a warpgroup)
//   kCtasPerSm      that must fit side by side
//   kReallocate     setmaxnreg moves the producer's registers to the consumers
//   kStepN          what N must be a multiple of
//   consume(hw, p), produce(hw, p)   the roles
#pragma once
#include "hw/ptx/hw.cuh"
#include "kernel/cta.h"
#include "ladder/roles.h"
#include "ladder/rung.h"

namespace hopgemm::ladder {

// With setmaxnreg. HAZARD: 384 threads are launched with 168 registers each; more in all, and the increase
// never returns. The product gives its consumers 240 (config.h); the table of docs/ladder.md has these.
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kProducerRegisters + kNumConsumers * kConsumerRegisters <= 3 * kLaunchRegisters);

// A CTA, from its first instruction to its last.
template <class Roles, class Hw> __device__ __forceinline__ void run_roles(const GemmParams<CUtensorMap>& p) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  static_assert(smem_bytes(kConfig) <= kMaxSmemBytes);
  const uint32_t smem = smem_base();
  const int warpgroup = warp_index() / kWarpsPerGroup;
  Hw any(smem, -1);
  enter(any, p.grid.split);
  // HAZARD: consumers first. With the producer's branch first ptxas serializes every wgmma (C7510).
  if (Roles::kProducer == 0 || warpgroup < Roles::kConsumers) {
    if constexpr (Roles::kReallocate) ptx::setmaxnreg_inc<kConsumerRegisters>();
    Hw hw(smem, Roles::kConsumers == 1 ? 0 : warpgroup);  // a constant leaves named barriers for a second CTA
    Roles::consume(hw, p);
  } else if constexpr (Roles::kProducer > 0) {
    if constexpr (Roles::kReallocate) ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == Roles::kConsumers * kWarpgroup) Roles::produce(any, p);
  }
}

template <class Roles> inline constexpr int kThreads = Roles::kConsumers * kWarpgroup + Roles::kProducer;

template <class Roles, DType kType> __global__ void __launch_bounds__(kThreads<Roles>, Roles::kCtasPerSm)
    rung_kernel(const __grid_constant__ GemmParams<CUtensorMap> p) {
  run_roles<Roles, PtxHw<Roles::config(kType)>>(p);
}

template <class Roles> Rung make_rung(const char* name, const char* idea) {
  constexpr KernelConfig kConfig = Roles::config(DType::kBF16);
  return {name,
          idea,
          kConfig.tile_m,
          Roles::kStepN,
          kTileK,
          true,
          true,
          &launch_tma,
          {reinterpret_cast<const void*>(&rung_kernel<Roles, DType::kF16>),
           reinterpret_cast<const void*>(&rung_kernel<Roles, DType::kBF16>)},
          kConfig,
          Roles::kSchedule,
          kThreads<Roles>,
          Roles::kPersistent};
}

}  // namespace hopgemm::ladder
