// The life of a CTA around its roles: barriers before the first of them, nobody gone before the last.
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
  if constexpr (has_peers(kConfig)) hw.cluster_sync();
  else hw.cta_sync();
}

// Every thread. HAZARD: without it a peer may write into shared memory, or arrive on barriers, that are gone.
template <class Hw> HOPGEMM_DEVICE void leave(Hw& hw) {
  if constexpr (has_peers(Hw::kKernelConfig)) hw.cluster_sync();
}

}  // namespace hopgemm
