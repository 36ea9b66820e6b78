// The way out of a swapped kernel: every CTA of the split sends each band of its sums to the band's
// owner through distributed shared memory; owners add them up in the order of the split, whichever
// arrived first, scale, round and write. Without a split the bands only change places, so that columns of the
// tile, rows of the caller's result, leave in one piece.
//
// - sums_full: the bytes of 8 bands have arrived, from all CTAs of the split; the owner's consumers may read.
// - sums_empty: every owner has read what this CTA sent; its consumers may send again.
#pragma once
#include "kernel/layout.h"
#include "kernel/params.h"

namespace hopgemm {

template <class Hw> HOPGEMM_DEVICE void exchange_here(Hw& hw, const typename Hw::Accumulator& acc,
                                                      const Tile& t,
                                                      const GemmParams<typename Hw::TensorMap>& p) {
  hw.keep_sums(acc);
  hw.consumers_sync();  // both have written
  hw.reduce_sums(p.epilogue, t, 1);
  hw.consumers_sync();  // both have read
}

template <class Hw> HOPGEMM_DEVICE void exchange(Hw& hw, const typename Hw::Accumulator& acc, const Tile& t,
                                                 const GemmParams<typename Hw::TensorMap>& p,
                                                 uint32_t phase) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  if (p.grid.split == 1) return exchange_here(hw, acc, t, p);
  hw.wait_peers(hw.sums_empty(), phase ^ 1);  // pairs with arrive_split of the tile before; the first passes
  if (hw.consumer() == 0) hw.arrive_expect_tx(hw.sums_full(), sums_tx_bytes(kConfig));
  hw.send_sums(acc, p.grid.split);
  hw.wait_peers(hw.sums_full(), phase);  // pairs with arrive_expect_tx and send_sums, here and in the peers
  hw.reduce_sums(p.epilogue, t, p.grid.split);
  hw.consumer_sync();
  hw.arrive_split(hw.sums_empty(), p.grid.split);  // pairs with the wait above, here and in the peers
}

}  // namespace hopgemm
