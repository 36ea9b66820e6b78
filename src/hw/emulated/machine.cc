#include "hw/emulated/machine.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "hw/emulated/role.h"

#ifdef __SANITIZE_THREAD__
// HAZARD: called with TSan's lock held; an instrumented access would wait for it for ever.
extern "C" __attribute__((no_sanitize("thread"))) void __tsan_on_report(void*) {
  ++hopgemm::emulated::tsan::reports;
}
#endif

namespace hopgemm::emulated {
namespace {

struct Failed {};  // thrown by a job; a fiber that fails is never resumed

constexpr int kMaxTx = (1 << 20) - 1;  // PTX ISA, "mbarrier": range of the tx-count

}  // namespace

std::string text(const char* format, ...) {
  char buffer[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  return buffer;
}

// ---- the machine ------------------------------------------------------------------------------------------

Machine::Machine(const Launch& launch)
    : launch_(launch),
      config_(launch.config),
      agents_per_cta_(kLoadAgent + operand_bytes(config_) / load_bytes(config_)),
      random_(launch.seed) {
  const int size = cluster_size(config_, launch.params.grid.split),
            bytes = barrier_offset(config_, num_barriers(config_));
  for (int i = 0; i < launch.num_ctas; ++i) {
    Cta cta;
    cta.index = i, cta.rank = i % size, cta.first = i / size * size;
    cta.smem.assign(bytes, kPoison);
    cta.staged.assign(result_bytes(config_), kPoison);
    cta.history.resize(bytes / kAtomBytes);
    cta.releases.resize(config_.num_stages);
    ctas_.push_back(std::move(cta));
  }
  cta_meetings_.resize(launch.num_ctas);
  cluster_meetings_.resize(launch.num_ctas / size);
  // The temper of this run: 0 is as late as possible.
  constexpr int kWeights[] = {0, 1, 8, 64};
  for (int& w : job_weight_) w = kWeights[random_.below(4)];
  constexpr int kPauses[] = {1, 3, 1000};
  pause_in_ = kPauses[random_.below(3)];
}

Machine::~Machine() = default;

void Machine::add(std::unique_ptr<Role> role, size_t stack_bytes, std::function<void()> body) {
  constexpr int kSpeeds[] = {1, 8, 8, 64};
  role->speed_ = kSpeeds[random_.below(4)];
  role->window_ = 1 + random_.below(8);
  role->fiber_.start(stack_bytes, std::move(body));
  roles_.push_back(std::move(role));
}

Result Machine::run() {
  tsan::separate_runs();
  tsan::ignore();
  std::vector<Choice> choices;
  try {
    for (;; ++result_.steps) {
      collect(choices);
      if (choices.empty()) break;
      const Choice& c = pick(choices);
      running_ = c.role;
      if (c.job >= 0) {
        run_job(*c.role, c.job);
        if (tsan::reports) fail("ThreadSanitizer has reported a race");
        continue;
      }
      c.role->blocked_.on = Role::Blocked::On::kNothing;
      in_fiber_ = true;
      c.role->fiber_.resume();
      in_fiber_ = false;
      if (tsan::reports) fail("ThreadSanitizer has reported a race");
      if (!result_.ok()) break;
      if (c.role->fiber_.done()) leave(c.role->cta_);
    }
    for (const auto& role : roles_)
      if (result_.ok() && !role->fiber_.done()) result_.failure = deadlock();
  } catch (const Failed&) {
  }
  tsan::observe();
  tsan::separate_runs();
  return std::move(result_);
}

void Machine::fail(const std::string& message) {
  result_.failure = describe(*running_) + ": " + message;
  if (!in_fiber_) throw Failed{};
  for (;;) running_->fiber_.pause();
}

void Machine::collect(std::vector<Choice>& choices) {
  choices.clear();
  for (const auto& role : roles_) {
    if (!role->fiber_.done() && role->ready()) choices.push_back({role.get(), -1, role->speed_});
    int slots = role->window_;
    for (int i = 0; i < static_cast<int>(role->jobs_.size()) && slots > 0; ++i) {
      if (!role->in_order(i)) continue;
      choices.push_back({role.get(), i, job_weight_[static_cast<int>(role->jobs_[i]->kind)]});
      --slots;
    }
  }
}

// Weight 0 only where nothing else can happen.
const Machine::Choice& Machine::pick(const std::vector<Choice>& choices) {
  int total = 0;
  for (const Choice& c : choices) total += c.weight;
  if (total == 0) return choices[random_.below(static_cast<int>(choices.size()))];
  int at = random_.below(total);
  for (const Choice& c : choices)
    if ((at -= c.weight) < 0) return c;
  return choices.back();
}

void Machine::run_job(Role& role, int index) {
  // A context orders all that ran on it: jobs of which others learn in different ways may not share one.
  constexpr int kContexts = 16;
  static thread_local void* contexts[kNumJobKinds][kContexts];
  Job* const job = role.jobs_[index].get();
  void*& context = contexts[static_cast<int>(job->kind)][result_.steps % kContexts];
  if (!context) context = tsan::new_context();
  void* const here = tsan::this_context();
  tsan::switch_to(context);
  tsan::acquire(job);
  bool finished;
  try {
    finished = job->step(*job);
  } catch (const Failed&) {
    tsan::switch_to(here);
    throw;
  }
  tsan::release(job);
  tsan::switch_to(here);
  if (finished) role.jobs_.erase(role.jobs_.begin() + index);
}

// The last phase of a barrier that a wait of this CTA has seen completed.
int Machine::last_seen(const Cta& cta, uint32_t barrier) const {
  int last = -1;
  for (const auto& role : roles_) {
    if (&role->cta_ != &cta) continue;
    const auto seen = role->last_phase_.find(barrier);
    if (seen != role->last_phase_.end()) last = std::max(last, seen->second);
  }
  return last;
}

// After a CTA's last role nothing may touch its shared memory: it belongs to the next CTA.
void Machine::leave(Cta& cta) {
  Clock all;
  for (const auto& role : roles_) {
    if (&role->cta_ != &cta) continue;
    if (!role->fiber_.done()) return;
    all.join(role->clock_);
  }
  for (size_t i = 0; i < cta.history.size(); ++i) {
    const Epoch e = cta.history[i].last_unknown(all);
    if (e.agent >= 0)
      fail(text("CTA %d leaves, and does not know that %s is done with its shared memory at %zu", cta.index,
                describe(e, cta).c_str(), i * kAtomBytes));
  }
  for (const auto& [offset, b] : cta.barriers) {
    if (b.last_remote > last_seen(cta, offset))
      fail(text("CTA %d leaves, and does not know of every arrival of its peers on %s", cta.index,
                barrier_name(offset).c_str()));
    if (b.pending != b.arrivals || b.tx != 0)
      fail(text("CTA %d leaves %s in the middle of phase %d (%d arrivals and %lld bytes pending)", cta.index,
                barrier_name(offset).c_str(), b.phase, b.pending, static_cast<long long>(b.tx)));
  }
  cta.left = true;
}

std::string Machine::deadlock() const {
  std::string s = "deadlock:";
  for (const auto& role : roles_) {
    if (role->fiber_.done()) continue;
    s += "\n  " + describe(*role) + " ";
    const Role::Blocked& until = role->blocked_;
    using On = Role::Blocked::On;
    if (until.on == On::kBarrier) {
      const Barrier& b = role->cta_.barriers.at(until.barrier);
      s += text("waits for %s parity %u (phase %d, %d of %d arrivals and %lld bytes pending)",
                barrier_name(until.barrier).c_str(), until.parity, b.phase, b.pending, b.arrivals,
                static_cast<long long>(b.tx));
    } else {
      s += until.on == On::kMeeting ? "waits for the others to meet it" : "waits for an engine";
    }
  }
  return s;
}

// CTA, role, and the tile it is at.
std::string Machine::describe(const Role& role) const {
  std::string s = text("CTA %d %s", role.cta_.index,
                       role.consumer_ < 0 ? "producer"
                       : role.consumer_   ? "consumer 1"
                                          : "consumer 0");
  const Params& p = launch_.params;
  const bool in_turn = role.consumer_ >= 0 && !is_cooperative(config_);
  const KSteps share = dealt_steps(p.grid.k_tiles, p.grid.split, split_index(config_, role.cta_.rank));
  int left = role.k_steps_, turn = 0;
  // Any config: the order of the walk does not depend on it.
  TileScheduler<KernelConfig{}> tiles(p.grid, role.Role::cluster(), role.Role::num_clusters(), 0);
  for (; tiles.valid(); tiles.next(), turn ^= 1) {
    const Piece piece = tiles.piece();
    const Block b = block_at(p.grid, piece.block);
    const KSteps forwards = is_swapped(config_) ? share : piece.k,
                 k = b.k_reversed ? reversed(forwards) : forwards;
    if (in_turn && turn != role.consumer_) continue;
    if (left < k.count) {
      return s + text(" [tile m %d n %d batch %d %d, k step %d]", b.m * config_.cluster_m * config_.tile_m,
                      b.n * config_.cluster_n * config_.tile_n, b.batch_inner, b.batch_outer,
                      k.first + left * k.step);
    }
    left -= k.count;
  }
  return s;
}

std::string Machine::describe(const Epoch& e, const Cta& cta) const {
  const int owner = cta.first + e.agent / agents_per_cta_, agent = e.agent % agents_per_cta_;
  if (agent == kProducer) return text("the producer of CTA %d", owner);
  if (agent < kMmaAgent) return text("consumer %d of CTA %d", agent, owner);
  if (agent < kStoreAgent) return text("a wgmma of consumer %d of CTA %d", agent - kMmaAgent, owner);
  if (agent < kSumsAgent)
    return text("a store of consumer %d of CTA %d", (agent - kStoreAgent) / kStagingSlots, owner);
  if (agent < kLoadAgent) return "the sending of sums";
  return "a load";
}

std::string Machine::barrier_name(uint32_t offset) const {
  const int index = (static_cast<int>(offset) - barrier_offset(config_, 0)) / 8, stages = config_.num_stages;
  if (index < 0 || index >= num_barriers(config_)) return text("the barrier at %u", offset);
  if (index < stages) return text("full[%d]", index);
  if (index < 2 * stages) return text("empty[%d]", index - stages);
  if (index < sums_full_index(config_)) return text("turn[%d]", index - 2 * stages);
  return index == sums_full_index(config_) ? "sums_full" : "sums_empty";
}

void Machine::signal(Barrier& b, int arrivals, int64_t bytes, const Clock& clock) {
  b.pending -= arrivals;
  b.tx += bytes;
  if (b.pending < 0) fail(text("an arrival too many (of %d) in phase %d", b.arrivals, b.phase));
  if (std::abs(b.tx) > kMaxTx)
    fail(text("%lld bytes pending in phase %d", static_cast<long long>(b.tx), b.phase));
  b.arriving.join(clock);
  tsan::release(&b);
  if (b.pending > 0 || b.tx != 0) return;
  ++b.phase;
  b.pending = b.arrivals;
  b.completed = b.arriving;
}

int Machine::first_agent(const Cta& cta) const { return cta.rank * agents_per_cta_; }

}  // namespace hopgemm::emulated
