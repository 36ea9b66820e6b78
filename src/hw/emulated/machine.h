// A Hopper GPU as far as the role loops can tell: CTAs in clusters, shared memory, barriers that count
// arrivals and bytes, copy and tensor-core engines that work later, and a scheduler that picks by seed what
// happens next, as late or as early as the rules allow. Roles, not lanes; what a call means is in hw/hw.h.
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "hw/emulated/clock.h"
#include "hw/emulated/fiber.h"
#include "kernel/layout.h"
#include "kernel/params.h"

namespace hopgemm::emulated {

// What a CUtensorMap says. Strides in bytes; the first dimension is dense.
struct TensorMap {
  char* data = nullptr;
  int element_bytes = 2;
  int64_t size[4] = {}, stride[4] = {};
  int box_rows = 0, row_bytes = kSwizzleBytes;
};
using Params = GemmParams<TensorMap>;

struct Launch {
  KernelConfig config;
  Params params;
  int num_ctas;
  uint64_t seed = 0;
  bool log = false;
  bool find_races = true;  // false: leaves them to ThreadSanitizer
  bool begins_early = true;  // before what was launched before it is done
};

struct Event {
  int step, cta;
  const char* role;
  const char* what;
  int where;  // stage, staging slot or barrier's byte offset
  int64_t value;
};

struct Result {
  std::string failure;  // empty: none
  int64_t steps = 0;
  std::vector<Event> events;
  bool ok() const { return failure.empty(); }
};

// xorshift64*: any seed, the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_((seed + 1) * 0x9E3779B97F4A7C15u) {
    if (state_ == 0) state_ = 1;  // 0 would stay 0
    for (int i = 0; i < 4; ++i) below(1);
  }
  int below(int n) {
    state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
    return static_cast<int>((state_ * 0x2545F4914F6CDD1Du >> 33) % static_cast<uint64_t>(n));
  }

 private:
  uint64_t state_;
};

// Agents of a CTA: its roles, its consumers' tensor cores, the readers of its staging slots, and the writers
// of the parts that it sums and of each load_bytes() of its stages.
inline constexpr int kProducer = kNumConsumers;
inline constexpr int kMmaAgent = kProducer + 1;
inline constexpr int kStoreAgent = kMmaAgent + kNumConsumers;
inline constexpr int kSumsAgent = kStoreAgent + kNumConsumers * kStagingSlots;
inline constexpr int kLoadAgent = kSumsAgent + kNumConsumers * kMaxSplit;
constexpr int load_bytes(const KernelConfig& c) {
  return std::min(4096, box_rows(b_tile(c)) * row_bytes(b_tile(c)));
}

inline constexpr uint8_t kPoison = 0xFF;  // NaN in every type
constexpr int operand_bytes(const KernelConfig& c) { return result_offset(c); }

// Phases are counted, although a wait names a parity only. `tx` may be below zero: bytes may land before they
// are announced.
struct Barrier {
  int arrivals = 0, pending = 0, phase = 0;
  int64_t tx = 0;
  Epoch made;
  bool fenced = false;  // known to copies and peers
  Clock arriving;  // what the arrivals so far know
  Clock completed;  // what a wait learns
  int last_remote = -1;  // the last phase in which an arrival came from elsewhere
};

class Role;
enum class JobKind { kLoad, kMma, kStore, kArrive };
inline constexpr int kNumJobKinds = 4;

// Work of an engine: its issuer's clock at issue is all it knows.
struct Job {
  JobKind kind;
  Epoch epoch;
  Clock clock;
  std::function<bool(Job&)> step;  // does one more piece; true: finished
};

struct Cta {
  int index, rank, first;  // `first`: index of rank 0 of its cluster
  std::vector<uint8_t> smem;
  std::vector<uint8_t> staged;  // staging as ordinary writes see it; smem holds what copies see
  enum class Slot { kClean, kWritten, kFenced, kVisible } slots[kNumConsumers][kStagingSlots] = {};
  std::vector<History> history;  // per swizzle atom
  std::map<uint32_t, Barrier> barriers;
  std::vector<int> releases;  // per stage, by own consumers
  bool left = false;
};

// All roles of a CTA or a cluster meet.
struct Meeting {
  int arrived = 0, generation = 0;
  Clock arriving, last;
};

class Machine {
 public:
  explicit Machine(const Launch& launch);
  ~Machine();

  // `body` of each role is run until all have ended, or something is wrong.
  void add(std::unique_ptr<Role> role, size_t stack_bytes, std::function<void()> body);
  Result run();

 private:
  friend class Role;
  struct Choice {
    Role* role;
    int job;  // in the role's queue; -1: the role itself
    int weight;
  };

  [[noreturn]] void fail(const std::string& text);
  void collect(std::vector<Choice>& choices);
  const Choice& pick(const std::vector<Choice>& choices);
  void run_job(Role& role, int index);
  void leave(Cta& cta);
  int last_seen(const Cta& cta, uint32_t barrier) const;
  std::string deadlock() const;
  std::string describe(const Role& role) const;
  std::string describe(const Epoch& epoch, const Cta& cta) const;
  std::string barrier_name(uint32_t offset) const;
  void signal(Barrier& barrier, int arrivals, int64_t bytes, const Clock& clock);
  int first_agent(const Cta& cta) const;

  const Launch& launch_;
  const KernelConfig config_;
  const int agents_per_cta_;
  uint32_t tick_ = 0;  // of jobs
  Random random_;
  Result result_;
  std::vector<Cta> ctas_;
  std::vector<Meeting> cta_meetings_, cluster_meetings_;
  std::vector<std::unique_ptr<Role>> roles_;
  Role* running_ = nullptr;  // whose fiber or job
  bool in_fiber_ = false;
  int job_weight_[kNumJobKinds], pause_in_ = 2;
  std::set<std::tuple<const void*, int, int, int, int>> stored_;  // boxes of a matrix: each once
};

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace hopgemm::emulated
