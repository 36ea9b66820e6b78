// The way out of a swapped kernel: every CTA of the split sends each band of its sums to the band's
// owner through distributed shared memory; owners add them up in the order of the split, whichever
// arrived first, scale, round and write. A split of one sends to itself: the bands only change places,
// so that columns of the tile, rows of the caller's result, leave in one piece.
//
// - sums_full: 8 bands have arrived, from all CTAs of the split; the owner's consumers may read.
// - sums_empty: every owner has read what this CTA sent; its consumers may send again.
#pragma once
#include "kernel/layout.h"
#include "kernel/params.h"

namespace hopgemm {

template <class Hw> HOPGEMM_DEVICE void exchange(Hw& hw, const typename Hw::Accumulator& acc, const Tile& t,
                                                 const GemmParams<typename Hw::TensorMap>& p,
                                                 uint32_t phase) {
  hw.wait_peers(hw.sums_empty(), phase ^ 1);  // pairs with arrive_split of the tile before; the first passes
  hw.send_sums(acc, p.split);  // arrives on the owners' sums_full
  hw.wait_peers(hw.sums_full(), phase);  // pairs with send_sums, here and in the peers
  hw.reduce_sums(p.epilogue, t, p.split);
  hw.consumer_sync();
  hw.arrive_split(hw.sums_empty(), p.split);  // pairs with the wait above, here and in the peers
}

}  // namespace hopgemm
