// The contract between the role loops and whatever runs them: PtxHw on the GPU, EmulatedHw on the CPU.
// One object per role. A call stands for the whole role (one producer thread, or the 128 threads of a
// consumer), never for a lane.
//
// What orders what
//
// - init, fence_init: by the leader alone; then cta_sync or cluster_sync makes the barriers known to
//   all.
// - cta_sync: every thread of the CTA meets; what was before it is visible after it.
// - cluster_sync: every thread of the cluster meets. Orders nothing but barriers that fence_init has told
//   of; arrivals may still be on their way.
// - wait_for_launches: every launch before this one has finished, and what it wrote is visible.
//   Before it a role may not touch the operands, c, bias or d.
// - allow_next_launch: the next launch may begin, and then waits as above. The first call counts.
// - wait(barrier, parity): returns when the phase of that parity has completed; everything before the
//   arrivals that completed it is visible after it. Barriers start in phase 0; a wait for parity 1 then
//   passes.
// - arrive_expect_tx: one arrival, and `bytes` more that copies must deliver before the phase can
//   complete.
// - arrive_cluster: one arrival on this barrier in every CTA of the mask. Orders nothing but what the
//   caller waited for: the wgmma that read the stage.
// - load<multicast>: returns at once; some time later the box is in shared memory (of every CTA of the
//   mask, at the same offset) and its bytes are counted on that CTA's barrier of the same place.
//   Elements outside the tensor arrive as zeros, and count.
// - mma: returns at once; reads both operands any time until the mma_wait that covers its group
//   returns.
// - mma_commit, mma_wait<n>: closes a group; waits until at most n groups are unfinished. Groups finish
//   in order.
// - round: rounds the accumulator to 16 bits, to nearest even, in registers.
// - stage: puts a piece (64 rows, 128 bytes from `column` on, of the rounded result or of the fp32
//   accumulator) into the staging slot, by ordinary writes.
// - fence_proxy_async: ordinary writes of this thread before it are seen by copies that are issued
//   after it.
// - consumer_sync: all 128 threads of this consumer meet.
// - store: returns at once; reads the slot any time until store_wait_read<n> covers it. Clips at the
//   edges. HAZARD: writes the tensor's last 16 bytes of a row whole, also where the row ends inside
//   them.
// - store_direct: leaves the slot by ordinary writes, element by element inside the result; to
//   store_wait_read it is a store that has finished.
// - store_wait_read<n>: all but the last n stores have read their slots; then consumer_sync.
// - store_drain: every store is done, in memory too.
// - send_sums: returns at once, and has read the accumulator; some time later every part of it but the own
//   one is in the exchange buffer of the CTA that sums it, and its bytes are counted on sums_full there.
// - wait_peers: as wait, for what other CTAs arrived with: what they wrote into this CTA's shared
//   memory is visible after it, and what they read of theirs may be overwritten.
// - add_sums: adds the own part of this consumer and those that the others sent, in the order of the split;
//   the sums take the own part's place in the accumulator.
// - arrive_split: one arrival on this barrier in every CTA that shares the tile. Orders nothing but
//   reads whose values have been used: those of add_sums, by store_sums.
// - store_sums: rounds the own part of the accumulator, all of it without a split, and writes by plain stores
//   what lies inside the result.
#pragma once
#include <concepts>
#include <cstdint>

#include "kernel/params.h"

namespace hopgemm {

template <class Hw>
concept Barriers = requires(Hw& hw, int stage, uint32_t parity, int bytes, uint32_t mask) {
  hw.init(hw.full(stage), bytes);
  hw.fence_init();
  hw.wait(hw.full(stage), parity);
  hw.wait(hw.empty(stage), parity);
  hw.wait(hw.turn(0), parity);
  hw.arrive(hw.turn(0));
  hw.arrive_expect_tx(hw.full(stage), bytes);
  hw.arrive_cluster(hw.empty(stage), mask);
};

template <class Hw>
concept Hardware =
    Barriers<Hw> && requires(Hw& hw, const typename Hw::TensorMap& map, typename Hw::Accumulator& acc,
                             typename Hw::Rounded& rounded, int i, CachePolicy policy,
                             const EpilogueParams& epilogue, const Tile& tile) {
      { Hw::kKernelConfig } -> std::convertible_to<KernelConfig>;
      { hw.is_leader() } -> std::same_as<bool>;
      hw.cta_sync();
      hw.cluster_sync();
      hw.wait_for_launches();
      hw.allow_next_launch();
      { hw.cluster() } -> std::same_as<int>;
      { hw.num_clusters() } -> std::same_as<int>;
      { hw.cta_rank() } -> std::same_as<int>;
      { hw.consumer() } -> std::same_as<int>;
      hw.template load<true>(map, i, hw.full(0), i, i, i, i, 1u, policy);
      hw.mma(acc, i, true);
      hw.mma_commit();
      hw.template mma_wait<1>(acc);
      hw.scale(acc, epilogue, tile);
      hw.round(acc, rounded);
      hw.template stage<64>(rounded, i, i, i);
      hw.template stage<32>(acc, i, i, i);
      hw.fence_proxy_async();
      hw.consumer_sync();
      hw.store(map, i, i, i, i, i, policy);
      hw.template store_direct<64>(epilogue, i, i, i, tile);
      hw.template store_wait_read<1>();
      hw.store_drain();
      hw.wait_peers(hw.sums_full(), 0u);
      hw.wait_peers(hw.sums_empty(), 0u);
      hw.send_sums(acc, i);
      hw.add_sums(acc, i);
      hw.store_sums(acc, epilogue, tile, i);
      hw.arrive_split(hw.sums_empty(), i);
    };

}  // namespace hopgemm
