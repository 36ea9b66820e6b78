// TracedHw: any hardware of the contract in hw/hw.h, with a note of when each call began and ended. Calls
// that it does not name go to the hardware unseen, so that the contract may grow. The role loops know nothing
// of it.
#pragma once
#include <utility>

#include "hw/device.h"
#include "kernel/params.h"
#include "trace/record.h"

namespace hopgemm::trace {

// `Recorder` has `begin()` and `end(Op, int where)`: each reads the clock, the second makes a record.
template <class Base, class Recorder> class TracedHw : public Base {
 public:
  using Base::kKernelConfig;
  using typename Base::Accumulator;
  using typename Base::Rounded;
  using typename Base::TensorMap;

  template <class... Args> HOPGEMM_DEVICE explicit TracedHw(Recorder recorder, Args&&... args)
      : Base(std::forward<Args>(args)...),
        recorder_(recorder) {}

  HOPGEMM_DEVICE void wait(uint32_t barrier, uint32_t parity) {
    constexpr int kStages = kKernelConfig.num_stages;  // barriers: full, empty, turn (config/config.h)
    const int index = barrier_index(barrier);
    const Op op = index < kStages ? Op::kWaitFull : index < 2 * kStages ? Op::kWaitEmpty : Op::kWaitTurn;
    const int where = index < kStages ? index : index < 2 * kStages ? index - kStages : index - 2 * kStages;
    timed(op, where, [&] { Base::wait(barrier, parity); });
  }

  template <bool kMulticast> HOPGEMM_DEVICE void load(const TensorMap& map, int offset, uint32_t barrier,
                                                      int c0, int c1, int c2, int c3, uint32_t mask,
                                                      CachePolicy policy) {
    timed(offset < b_offset(kKernelConfig, 0) ? Op::kLoadA : Op::kLoadB, barrier_index(barrier),
          [&] { Base::template load<kMulticast>(map, offset, barrier, c0, c1, c2, c3, mask, policy); });
  }

  HOPGEMM_DEVICE void mma(Accumulator& acc, int stage, bool accumulate) {
    timed(Op::kMma, stage, [&] { Base::mma(acc, stage, accumulate); });
  }
  template <int kPending> HOPGEMM_DEVICE void mma_wait(Accumulator& acc) {
    timed(Op::kMmaWait, kPending, [&] { Base::template mma_wait<kPending>(acc); });
  }

  HOPGEMM_DEVICE void scale(Accumulator& acc, const EpilogueParams& e, const Tile& t) {
    timed(Op::kFinish, 0, [&] { Base::scale(acc, e, t); });
  }
  HOPGEMM_DEVICE void round(const Accumulator& acc, Rounded& rounded) {
    timed(Op::kFinish, 0, [&] { Base::round(acc, rounded); });
  }
  template <int kColumns, class Values>
  HOPGEMM_DEVICE void stage(const Values& values, int row, int column, int slot) {
    timed(Op::kStage, slot, [&] { Base::template stage<kColumns>(values, row, column, slot); });
  }
  HOPGEMM_DEVICE void store(const TensorMap& map, int slot, int n, int m, int batch_inner, int batch_outer,
                            CachePolicy policy) {
    timed(Op::kStore, slot, [&] { Base::store(map, slot, n, m, batch_inner, batch_outer, policy); });
  }
  template <int kColumns>
  HOPGEMM_DEVICE void store_direct(const EpilogueParams& e, int slot, int m, int n, const Tile& t) {
    timed(Op::kStore, slot, [&] { Base::template store_direct<kColumns>(e, slot, m, n, t); });
  }
  template <int kPending> HOPGEMM_DEVICE void store_wait_read() {
    timed(Op::kStoreWait, kPending, [&] { Base::template store_wait_read<kPending>(); });
  }
  HOPGEMM_DEVICE void store_drain() {
    timed(Op::kDrain, 0, [&] { Base::store_drain(); });
  }

 private:
  HOPGEMM_DEVICE int barrier_index(uint32_t barrier) const {
    constexpr int kBarrierBytes = 8;
    return static_cast<int>(barrier - Base::full(0)) / kBarrierBytes;
  }
  template <class Call> HOPGEMM_DEVICE void timed(Op op, int where, Call&& call) {
    recorder_.begin();
    call();
    recorder_.end(op, where);
  }

  Recorder recorder_;
};

}  // namespace hopgemm::trace
