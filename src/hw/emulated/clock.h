// Who knows of whose work: vector clocks, and the last accesses of every swizzle atom of shared memory. Two
// accesses that no chain of signals orders are a race, whatever order this run happened to take.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace hopgemm::emulated {

// One piece of work of one agent: a role, or an engine's slot that does one thing at a time.
struct Epoch {
  int agent = -1;  // nobody
  uint32_t tick = 0;
};

class Clock {
 public:
  explicit Clock(int agents = 0) : ticks_(agents) {}
  void join(const Clock& other) {
    if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
    for (size_t i = 0; i < other.ticks_.size(); ++i) ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
  }
  void join(Epoch e) {
    if (static_cast<int>(ticks_.size()) <= e.agent) ticks_.resize(e.agent + 1);
    ticks_[e.agent] = std::max(ticks_[e.agent], e.tick);
  }
  bool covers(Epoch e) const {
    return e.agent < 0 || (e.agent < static_cast<int>(ticks_.size()) && ticks_[e.agent] >= e.tick);
  }
  uint32_t tick(int agent) const { return ticks_[agent]; }

 private:
  std::vector<uint32_t> ticks_;
};

// The last write of an atom, and the reads since.
class History {
 public:
  // The access that `clock` does not know of, or nobody.
  Epoch read(Epoch reader, const Clock& clock) {
    const Epoch conflict = clock.covers(write_) ? Epoch{} : write_;
    for (Epoch& r : reads_) {
      if (r.agent == reader.agent) {
        r = reader;
        return conflict;
      }
    }
    reads_.push_back(reader);
    return conflict;
  }
  Epoch write(Epoch writer, const Clock& clock) {
    const Epoch conflict = last_unknown(clock);
    reads_.clear();
    write_ = writer;
    return conflict;
  }
  Epoch last_unknown(const Clock& clock) const {
    for (const Epoch& r : reads_)
      if (!clock.covers(r)) return r;
    return clock.covers(write_) ? Epoch{} : write_;
  }

 private:
  Epoch write_;
  std::vector<Epoch> reads_;
};

}  // namespace hopgemm::emulated
