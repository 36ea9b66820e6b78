// What a CTA does before its roles. After them there is nothing: a producer ends when its ring is drained.
#pragma once
#include "config/config.h"
#include "hw/device.h"

namespace hopgemm {

// Every thread. After it the barriers of this CTA and of its peers may be waited for, arrived at, copied to.
template <class Hw> HOPGEMM_DEVICE void enter(Hw& hw, int split) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  if (hw.is_leader()) {
    for (int s = 0; s < kConfig.num_stages; ++s) {
      hw.init(hw.full(s), full_arrivals(kConfig));
      hw.init(hw.empty(s), empty_arrivals(kConfig));
    }
    for (int i = 0; i < kNumConsumers; ++i) hw.init(hw.turn(i), turn_arrivals(kConfig));
    if constexpr (is_swapped(kConfig)) {
      hw.init(hw.sums_full(), sums_full_arrivals(kConfig));
      hw.init(hw.sums_empty(), sums_empty_arrivals(kConfig, split));
    }
    hw.fence_init();
  }
  if (has_peers(kConfig, split)) hw.cluster_sync();
  else hw.cta_sync();
}

}  // namespace hopgemm
