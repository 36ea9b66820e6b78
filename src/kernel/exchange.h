// The way out of a swapped kernel. The CTAs of a split share a tile: each thread keeps one part of its sums,
// and sends the others to the threads of the same place in the other CTAs, through distributed shared memory.
// There the parts are added in the order of the split, whichever arrived first, and written.
//
// - sums_full: the parts of all others have arrived; the consumers may read.
// - sums_empty: all others have read what this CTA sent; its consumers may send again.
#pragma once
#include "kernel/layout.h"
#include "kernel/params.h"

namespace hopgemm {

template <class Hw>
HOPGEMM_DEVICE void exchange(Hw& hw, typename Hw::Accumulator& acc, int split, uint32_t phase) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  hw.wait_peers(hw.sums_empty(), phase ^ 1);  // pairs with arrive_split of the tile before; the first passes
  if (hw.consumer() == 0) hw.arrive_expect_tx(hw.sums_full(), sums_tx_bytes(kConfig, split));
  hw.send_sums(acc, split);
  hw.wait_peers(hw.sums_full(), phase);  // pairs with arrive_expect_tx and send_sums, here and in the peers
  hw.add_sums(acc, split);
}

template <class Hw> HOPGEMM_DEVICE void swapped_epilogue(Hw& hw, typename Hw::Accumulator& acc, const Tile& t,
                                                         const GemmParams<typename Hw::TensorMap>& p,
                                                         uint32_t phase) {
  const int split = p.grid.split;
  if (split > 1) exchange(hw, acc, split, phase);
  // HAZARD: parts of others are scaled, too, and d may be c, which their owners write meanwhile. What comes
  // of that is not stored.
  if (p.epilogue.scaled) hw.scale(acc, p.epilogue, t);
  hw.store_sums(acc, p.epilogue, t, split);
  if (split == 1) return;
  hw.consumer_sync();
  hw.arrive_split(hw.sums_empty(), split);  // HAZARD: not before the store, which has used what was read
}

}  // namespace hopgemm
