// The ring of stages: who waits for which barrier with which parity. Producer and consumers walk the ring in
// the same order for ever; nothing is reset between tiles.
//
//   full[s]   producer's one arrival + the bytes of the whole stage -> the consumers may read
//   empty[s]  every consumer that reads what this CTA's loads write -> the producer may overwrite
#pragma once
#include "config/config.h"
#include "hw/device.h"

namespace hopgemm {

template <int kStages> struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;

  HOPGEMM_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  // Past the stages of a tile that is another consumer's.
  HOPGEMM_DEVICE void advance(int count) {
    const int position = stage + count;
    stage = position % kStages;
    phase ^= static_cast<uint32_t>(position / kStages) & 1;
  }
};

// The producer's first lap finds every stage free: it waits for the parity before the first.
template <class Hw, int kStages>
HOPGEMM_DEVICE void producer_acquire(Hw& hw, const PipelineState<kStages>& state, int bytes) {
  hw.wait(hw.empty(state.stage), state.phase ^ 1);  // pairs with consumer_release
  hw.arrive_expect_tx(hw.full(state.stage), bytes);
}

template <class Hw, int kStages>
HOPGEMM_DEVICE void consumer_wait(Hw& hw, const PipelineState<kStages>& state) {
  hw.wait(hw.full(state.stage), state.phase);  // pairs with arrive_expect_tx and the bytes of the copies
}

// HAZARD: only after the wait for the wgmma that reads the stage. `peers`: every CTA whose loads write into
// this one.
template <class Hw, int kStages>
HOPGEMM_DEVICE void consumer_release(Hw& hw, const PipelineState<kStages>& state, uint32_t peers) {
  hw.arrive_cluster(hw.empty(state.stage), peers);  // pairs with producer_acquire, here and in the peers
}

// After the last load: every stage is free again, so that all arrivals of the peers have come, and all that
// this CTA's loads wrote into them has been read. HAZARD: without it a CTA may be gone when a peer's arrival
// comes.
template <class Hw, int kStages> HOPGEMM_DEVICE void drain_ring(Hw& hw, PipelineState<kStages> state) {
  for (int i = 0; i < kStages; ++i) {
    hw.wait(hw.empty(state.stage), state.phase ^ 1);  // pairs with consumer_release
    state.advance();
  }
}

}  // namespace hopgemm
