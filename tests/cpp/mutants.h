// Kernels that are wrong on purpose. A mutant wraps the hardware and perturbs what the role loops ask of it
// or are told by it; the loops themselves are those that ship. Each must be caught, or the emulator's silence
// means nothing.
#pragma once
#include "hw/emulated/hw.h"

namespace hopgemm::test {

enum class Mutant {
  kTxTooMany,
  kTxTooFew,
  kTxOncePerWarp,
  kTxTailClipped,
  kWrongStartPhase,
  kPhaseNotFlipped,
  kPhaseFlippedTwice,
  kPhaseResetPerTile,
  kOneFullBarrier,
  kReleaseBeforeWait,
  kNoRelease,
  kNoReleaseOnLastStep,
  kReleaseTwice,
  kReleaseOwnCtaOnly,
  kNoFullWait,
  kArrivalsTooMany,
  kArrivalsTooFew,
  kNoStartSync,
  kRingNotDrained,
  kNoInitFence,
  kNoLaunchWaitByProducer,
  kNoLaunchWaitByConsumers,
  kNoDrain,
  kNoProxyFence,
  kFenceAfterSync,
  kNoReadWait,
  kReadWaitTooWeak,
  kRaggedEndByTma,
  kBarrierInStage,
  kTurnIgnored,
  kTurnStartsWrong,
  kTileTwice,
  kTileSkipped,
  kMulticastOwnCtaOnly,
  kSliceOfAnother,
  kAccumulatorTooEarly,
  kNoWaitForOldGroup,
  kStageOfAnother,
  kSumsSentTooEarly,
  kSumsReadTooEarly,
  kSumsReleasedBeforeRead,
  kSumsReleasedHereOnly,
  kSumsNotShared,
  kSumsNotAnnounced,
  kSumsNotAdded,
  kLastReadersNotAwaited,
};

template <class Hw, Mutant kMutant> class MutantHw : public Hw {
  static constexpr KernelConfig kConfig = Hw::kKernelConfig;
  static constexpr bool is(Mutant m) { return kMutant == m; }
  using Acc = typename Hw::Accumulator;

 public:
  using Hw::Hw;

  // ---- the walk ----
  int num_clusters() const { return Hw::num_clusters() + (is(Mutant::kTileSkipped) ? 1 : 0); }
  int cluster() const { return is(Mutant::kTileTwice) ? Hw::cluster() / 2 : Hw::cluster(); }

  // ---- barriers ----
  uint32_t full(int stage) const {
    if (is(Mutant::kBarrierInStage)) return a_offset(kConfig, stage);
    return Hw::full(is(Mutant::kOneFullBarrier) ? 0 : stage);
  }
  void init(uint32_t barrier, int arrivals) {
    const bool empty = barrier >= Hw::empty(0) && barrier < Hw::turn(0);
    if (is(Mutant::kArrivalsTooMany) && empty) ++arrivals;
    if (is(Mutant::kArrivalsTooFew) && empty) --arrivals;
    Hw::init(barrier, arrivals);
  }
  void fence_init() {
    if (!is(Mutant::kNoInitFence)) Hw::fence_init();
  }
  void cluster_sync() {
    if (is(Mutant::kNoStartSync)) Hw::cta_sync();
    else Hw::cluster_sync();
  }
  void wait_for_launches() {
    const Mutant without =
        this->consumer() < 0 ? Mutant::kNoLaunchWaitByProducer : Mutant::kNoLaunchWaitByConsumers;
    if (!is(without)) Hw::wait_for_launches();
  }
  void wait(uint32_t barrier, uint32_t parity) {
    if (is(Mutant::kRingNotDrained) && this->consumer() < 0 && k_steps_ == all_k_steps()) return;
    if (this->consumer() < 0) parity = producer_parity(parity);
    else if (barrier >= Hw::turn(0) && barrier < Hw::turn(0) + 8 * kNumConsumers)
      return wait_turn(barrier, parity);
    else if (is(Mutant::kNoFullWait)) return;
    else parity = consumer_parity(parity);
    Hw::wait(barrier, parity);
  }
  void arrive_expect_tx(uint32_t barrier, int bytes) {
    if (barrier == Hw::sums_full()) {
      if (!is(Mutant::kSumsNotAnnounced)) Hw::arrive_expect_tx(barrier, bytes);
      return;
    }
    ++k_steps_;
    if (is(Mutant::kTxTooMany)) bytes += 16;
    if (is(Mutant::kTxTooFew)) bytes -= 16;
    const int k_tiles = this->launch().params.grid.k_tiles, tail = this->launch().params.a.size[0] % kTileK;
    if (is(Mutant::kTxTailClipped) && k_steps_ % k_tiles == 0 && tail != 0)
      bytes -= (kTileK - tail) * kConfig.tile_m * 2;
    for (int warp = 0; warp < (is(Mutant::kTxOncePerWarp) ? 4 : 1); ++warp)
      Hw::arrive_expect_tx(barrier, bytes);
  }
  void arrive_cluster(uint32_t barrier, uint32_t mask) {
    if (is(Mutant::kNoRelease) || is(Mutant::kReleaseBeforeWait)) return;
    if (is(Mutant::kNoReleaseOnLastStep) && std::exchange(last_step_, false)) return;
    if (is(Mutant::kReleaseOwnCtaOnly)) mask = 1u << this->cta_rank();
    Hw::arrive_cluster(barrier, mask);
    if (is(Mutant::kReleaseTwice)) Hw::arrive_cluster(barrier, mask);
  }

  // ---- operands ----
  template <bool kMulticast, class Map> void load(const Map& map, int offset, uint32_t barrier, int c0,
                                                  int c1, int c2, int c3, uint32_t mask, CachePolicy policy) {
    if (is(Mutant::kMulticastOwnCtaOnly)) mask = 1u << this->cta_rank();
    if (is(Mutant::kSliceOfAnother) && kMulticast) offset ^= map.box_rows * map.row_bytes;
    Hw::template load<kMulticast>(map, offset, barrier, c0, c1, c2, c3, mask, policy);
  }
  void mma(Acc& acc, int stage, bool accumulate) {
    if (!accumulate) k_steps_ = 0;
    ++k_steps_;
    Hw::mma(acc, is(Mutant::kStageOfAnother) ? (stage + 1) % kConfig.num_stages : stage, accumulate);
    if (is(Mutant::kReleaseBeforeWait))
      Hw::arrive_cluster(Hw::empty(stage), peer_mask(kConfig, this->cta_rank()));
  }
  template <int kPending> void mma_wait(Acc& acc) {
    last_step_ = kPending == 0;
    if (is(Mutant::kAccumulatorTooEarly) && kPending == 0) return;
    if (is(Mutant::kNoWaitForOldGroup) && kPending == 1) return;
    Hw::template mma_wait<kPending>(acc);
  }

  // ---- results ----
  void fence_proxy_async() {
    if (!is(Mutant::kNoProxyFence) && !is(Mutant::kFenceAfterSync)) Hw::fence_proxy_async();
  }
  void consumer_sync() {
    Hw::consumer_sync();
    if (is(Mutant::kFenceAfterSync)) Hw::fence_proxy_async();
  }
  template <int kColumns> void store_direct(const EpilogueParams& e, int slot, int m, int n, const Tile& t) {
    if (!is(Mutant::kRaggedEndByTma)) return Hw::template store_direct<kColumns>(e, slot, m, n, t);
    Hw::fence_proxy_async();
    Hw::consumer_sync();
    Hw::store(this->launch().params.d, slot, n, m, t.batch_inner, t.batch_outer, CachePolicy::kNormal);
  }
  template <int kPending> void store_wait_read() {
    if (is(Mutant::kNoReadWait)) Hw::consumer_sync();
    else Hw::template store_wait_read<kPending + (is(Mutant::kReadWaitTooWeak) ? 1 : 0)>();
  }
  void store_drain() {
    if (!is(Mutant::kNoDrain)) Hw::store_drain();
  }

  // ---- partial sums ----
  void send_sums(const Acc& acc, int split) {
    if (!is(Mutant::kSumsNotShared)) Hw::send_sums(acc, split);
  }
  void wait_peers(uint32_t barrier, uint32_t parity) {
    if (is(Mutant::kSumsReadTooEarly) && barrier == Hw::sums_full()) return;
    if (is(Mutant::kSumsSentTooEarly) && barrier == Hw::sums_empty()) return;
    if (is(Mutant::kLastReadersNotAwaited) && barrier == Hw::sums_empty() && waits_++ == all_tiles()) return;
    Hw::wait_peers(barrier, parity);
  }
  void add_sums(Acc& acc, int split) {
    if (is(Mutant::kSumsReleasedBeforeRead)) Hw::arrive_split(Hw::sums_empty(), split);
    if (!is(Mutant::kSumsNotAdded)) Hw::add_sums(acc, split);
  }
  void arrive_split(uint32_t barrier, int split) {
    if (is(Mutant::kSumsReleasedBeforeRead)) return;
    if (is(Mutant::kSumsReleasedHereOnly)) Hw::arrive(barrier);
    else Hw::arrive_split(barrier, split);
  }

 private:
  uint32_t producer_parity(uint32_t parity) {
    if (is(Mutant::kWrongStartPhase)) return parity ^ 1;
    // The phase bit flips at stage 0, and once more in the middle of the ring.
    const int stage = k_steps_ % kConfig.num_stages;
    return is(Mutant::kPhaseFlippedTwice) && stage >= kConfig.num_stages / 2 ? parity ^ 1 : parity;
  }
  uint32_t consumer_parity(uint32_t parity) {
    if (is(Mutant::kPhaseNotFlipped)) return 0;
    if (!is(Mutant::kPhaseResetPerTile)) return parity;
    const int step = waits_++ % this->launch().params.grid.k_tiles;
    return static_cast<uint32_t>(step / kConfig.num_stages) & 1;
  }
  void wait_turn(uint32_t barrier, uint32_t parity) {
    if (!is(Mutant::kTurnIgnored)) Hw::wait(barrier, is(Mutant::kTurnStartsWrong) ? parity ^ 1 : parity);
  }

  int all_tiles() {
    int count = 0;
    TileScheduler<kConfig> tiles(this->launch().params.grid, cluster(), num_clusters(), 0);
    for (; tiles.valid(); tiles.next()) ++count;
    return count;
  }
  // That the producer loads, in all of this CTA's tiles.
  int all_k_steps() {
    const auto& p = this->launch().params;
    int steps = 0;
    TileScheduler<kConfig> tiles(p.grid, cluster(), num_clusters(), this->cta_rank());
    for (; tiles.valid(); tiles.next()) steps += tiles.piece().k.count;
    return steps;
  }

  bool last_step_ = false;
  int k_steps_ = 0, waits_ = 0;
};

}  // namespace hopgemm::test
