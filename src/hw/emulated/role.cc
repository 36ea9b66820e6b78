#include "hw/emulated/role.h"

namespace hopgemm::emulated {

// ---- a role: where it is, when it goes on -----------------------------------------------------------------

Role::Role(Machine& machine, int cta, int consumer)
    : machine_(machine),
      cta_(machine.ctas_[cta]),
      consumer_(consumer),
      agent_(machine.first_agent(cta_) + (consumer < 0 ? kProducer : consumer)) {
  clock_.join(Epoch{agent_, tick_});
}

const KernelConfig& Role::config() const { return machine_.config_; }
const Launch& Role::launch() const { return machine_.launch_; }
int Role::cluster_ctas() const { return cluster_size(config(), launch().params.grid.split); }
int Role::cluster() const { return cta_.index / cluster_ctas(); }
int Role::num_clusters() const { return launch().num_ctas / cluster_ctas(); }
int Role::cta_rank() const { return cta_.rank; }
uint32_t Role::full(int stage) const { return barrier_offset(config(), full_index(config(), stage)); }
uint32_t Role::empty(int stage) const { return barrier_offset(config(), empty_index(config(), stage)); }
uint32_t Role::sums_full() const { return barrier_offset(config(), sums_full_index(config())); }
uint32_t Role::sums_empty() const { return barrier_offset(config(), sums_empty_index(config())); }
uint32_t Role::turn(int consumer) const { return barrier_offset(config(), turn_index(config(), consumer)); }

void Role::log(const char* what, int where, int64_t value) {
  if (!launch().log) return;
  const char* const name = consumer_ < 0 ? "producer" : consumer_ ? "consumer1" : "consumer0";
  machine_.result_.events.push_back(
      {static_cast<int>(machine_.result_.steps), cta_.index, name, what, where, value});
}

bool Role::ready() const {
  switch (blocked_.on) {
    case Blocked::On::kNothing: return true;
    case Blocked::On::kBarrier:
      return (cta_.barriers.at(blocked_.barrier).phase & 1) != static_cast<int>(blocked_.parity);
    case Blocked::On::kMeeting: return blocked_.meeting->generation > blocked_.target;
    case Blocked::On::kGroups:
      return std::all_of(groups_.begin(), groups_.begin() + blocked_.target,
                         [](const Group& g) { return g.unfinished == 0; });
    case Blocked::On::kStoresRead:
      return std::all_of(stores_.begin(), stores_.begin() + blocked_.target,
                         [](const StoreGroup& s) { return s.read; });
    case Blocked::On::kStores:
      return std::all_of(stores_.begin(), stores_.end(), [](const StoreGroup& s) { return s.done; });
  }
  return false;
}

void Role::block(const Blocked& until) {
  blocked_ = until;
  if (!ready()) fiber_.pause();
  blocked_.on = Blocked::On::kNothing;
}

void Role::sometimes_pause() {
  if (machine_.random_.below(machine_.pause_in_) == 0) fiber_.pause();
}

// What this role does from now on is not covered by what it has told so far.
void Role::published() { clock_.join(Epoch{agent_, ++tick_}); }

Job& Role::issue(JobKind kind, int agent, std::function<bool(Job&)> step) {
  jobs_.push_back(std::make_unique<Job>(Job{kind, {agent, ++machine_.tick_}, clock_, std::move(step)}));
  tsan::release(jobs_.back().get());
  published();
  return *jobs_.back();
}

// Loads, stores and arrivals overtake each other; wgmmas do not.
bool Role::in_order(int job) const {
  if (jobs_[job]->kind != JobKind::kMma) return true;
  for (int i = 0; i < job; ++i)
    if (jobs_[i]->kind == JobKind::kMma) return false;
  return true;
}

void Role::access(Cta& cta, int offset, int bytes, bool write, Epoch epoch, const Clock& clock,
                  const char* what) {
  if (cta.left) machine_.fail(text("%s in CTA %d, which has left", what, cta.index));
  if (offset < 0 || offset + bytes > static_cast<int>(cta.smem.size()))
    machine_.fail(text("%s at %d, outside the shared memory of CTA %d", what, offset, cta.index));
  if (!launch().find_races) return;
  for (int i = offset / kAtomBytes; i < (offset + bytes + kAtomBytes - 1) / kAtomBytes; ++i) {
    History& h = cta.history[i];
    const Epoch e = write ? h.write(epoch, clock) : h.read(epoch, clock);
    if (e.agent >= 0)
      machine_.fail(text("race: %s at %d of CTA %d's shared memory, not ordered after %s", what,
                         i * kAtomBytes, cta.index, machine_.describe(e, cta).c_str()));
  }
}

// ---- barriers ---------------------------------------------------------------------------------------------

void Role::init(uint32_t offset, int arrivals) {
  Barrier& b = cta_.barriers[offset];
  b.arrivals = b.pending = arrivals;
  b.made = {agent_, tick_};
  log("init", offset, arrivals);
}

void Role::fence_init() {
  for (auto& [offset, b] : cta_.barriers) b.fenced = true;
}

// `as_engine`: copies, like peers, see a barrier only after fence_init.
Barrier& Role::find(Cta& cta, uint32_t offset, const Clock& clock, const char* verb, bool as_engine) {
  const auto found = cta.barriers.find(offset);
  const bool as_thread = &cta == &cta_ && !as_engine;
  if (cta.left)
    machine_.fail(
        text("%s %s of CTA %d, which has left", verb, machine_.barrier_name(offset).c_str(), cta.index));
  if (found == cta.barriers.end() || !clock.covers(found->second.made) ||
      !(as_thread || found->second.fenced))
    machine_.fail(text("%s %s of CTA %d and cannot know that it is initialized", verb,
                       machine_.barrier_name(offset).c_str(), cta.index));
  return found->second;
}

void Role::meet(Meeting& meeting, int participants) {
  sometimes_pause();
  meeting.arriving.join(clock_);
  tsan::release(&meeting);
  const int generation = meeting.generation;
  if (++meeting.arrived == participants) {
    meeting.arrived = 0;
    meeting.last = meeting.arriving;
    ++meeting.generation;
  }
  block({.on = Blocked::On::kMeeting, .meeting = &meeting, .target = generation});
  tsan::acquire(&meeting);
  clock_.join(meeting.last);
  published();
}
void Role::cta_sync() { meet(machine_.cta_meetings_[cta_.index], kNumConsumers + 1); }
void Role::cluster_sync() {
  meet(machine_.cluster_meetings_[cluster()], (kNumConsumers + 1) * cluster_ctas());
}

void Role::wait(uint32_t offset, uint32_t parity) {
  sometimes_pause();
  Barrier& b = find(cta_, offset, clock_, "waits for");
  block({.on = Blocked::On::kBarrier, .barrier = offset, .parity = parity});
  log("wait", offset, parity);
  tsan::acquire(&b);
  clock_.join(b.completed);
  const bool is_full = offset < empty(0);
  const int phase = b.phase - 1, first = is_full ? 0 : -1;
  const auto [last, is_first] = last_phase_.try_emplace(offset, first - 1);
  if (phase <= last->second)
    machine_.fail(text("a wait for parity %u of %s passes at phase %d, which it has had", parity,
                       machine_.barrier_name(offset).c_str(), phase));
  // A ping-pong consumer steps over the stages of the other one's tiles.
  const bool may_skip = is_full && !is_cooperative(config());
  if (phase > last->second + 1 + (is_first ? 1 : 0) && !may_skip)
    machine_.fail(text("a wait for parity %u of %s passes at phase %d, and has missed phase %d", parity,
                       machine_.barrier_name(offset).c_str(), phase, last->second + 1));
  last->second = phase;
}

void Role::arrive(uint32_t offset) {
  sometimes_pause();
  log("arrive", offset, 0);
  machine_.signal(find(cta_, offset, clock_, "arrives on"), 1, 0, clock_);
  published();
}

void Role::arrive_expect_tx(uint32_t offset, int bytes) {
  sometimes_pause();
  log("arrive_expect_tx", offset, bytes);
  machine_.signal(find(cta_, offset, clock_, "arrives on"), 1, bytes, clock_);
  published();
  if (consumer_ < 0) ++k_steps_;
}

void Role::arrive_cluster(uint32_t offset, uint32_t mask) {
  sometimes_pause();
  log("arrive_cluster", offset, mask);
  const int stage = (static_cast<int>(offset) - static_cast<int>(empty(0))) / 8;
  if (stage >= 0 && stage < config().num_stages &&
      ++cta_.releases[stage] == (is_cooperative(config()) ? kNumConsumers : 1)) {
    cta_.releases[stage] = 0;  // nobody here reads it any more
    std::fill_n(cta_.smem.begin() + a_offset(config(), stage), a_stage_bytes(config()), kPoison);
    std::fill_n(cta_.smem.begin() + b_offset(config(), stage), b_stage_bytes(config()), kPoison);
  }
  if (cluster_size(config()) == 1) {
    machine_.signal(find(cta_, offset, clock_, "arrives on"), 1, 0, waited_);
    return;
  }
  for (int rank = 0; rank < cluster_ctas(); ++rank)
    if (mask >> rank & 1) arrive_remote(offset, rank, waited_);
}

// An arrival on its way to a CTA of the cluster; it tells what `known` knows.
void Role::arrive_remote(uint32_t offset, int rank, const Clock& known) {
  issue(JobKind::kArrive, agent_, [this, offset, rank, known](Job& job) {
    Barrier& b = find(machine_.ctas_[cta_.first + rank], offset, job.clock, "arrives on");
    b.last_remote = b.phase;
    machine_.signal(b, 1, 0, known);
    return true;
  });
}

}  // namespace hopgemm::emulated
