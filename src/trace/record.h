// What a trace holds: for each role of each CTA, in the order in which the role did them, its calls to the
// hardware with the clock before and after. Nothing of tiles or steps: those are counted afterwards
// (python/hopgemm/_trace_events.py).
#pragma once
#include <cstdint>

namespace hopgemm::trace {

// Numbered as in _trace_events.py. The comment says what `where` is.
enum class Op : uint32_t {
  kWaitEmpty,  // stage
  kLoadA,  // stage; from here to the landing the box is on its way
  kLoadB,  // stage
  kWaitFull,  // stage
  kMma,  // stage; issue of one step of K
  kMmaWait,  // groups that may stay unfinished
  kWaitTurn,  // consumer whose turn it is
  kFinish,  // 0; scaling and rounding in registers
  kStage,  // staging slot; registers to shared memory
  kStore,  // staging slot; issue
  kStoreWait,  // stores that may still read their slots
  kDrain,  // 0; wait until every store is in memory
  kLanded,  // stage; seen by the watcher, begin == end
};

struct Record {
  uint32_t begin, end;  // the lower half of the CTA's clock, in cycles
  Op op;
  uint32_t where;
};

// Streams of records of one CTA, in the order of its warpgroups: consumer 0, consumer 1, producer, watcher.
inline constexpr int kProducerRole = 2, kWatcherRole = 3, kNumRoles = 4;

// A moment on both clocks of a CTA: what aligns the CTAs, and says how long a cycle is.
struct ClockPair {
  uint64_t nanoseconds, cycles;
};

}  // namespace hopgemm::trace
