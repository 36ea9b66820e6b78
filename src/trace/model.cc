#include "trace/model.h"

#include <algorithm>
#include <stdexcept>

namespace hopgemm::trace {

// ---- the machine ------------------------------------------------------------------------------------------

Model::Model(const ModelLaunch& launch, Trace& trace)
    : launch_(launch),
      trace_(trace),
      ctas_(launch.num_ctas),
      cta_meetings_(launch.num_ctas),
      cluster_meetings_(launch.num_ctas / cluster_size(launch.config)) {
  trace_.assign(static_cast<size_t>(launch.num_ctas) * kNumRoles, {});
}

Model::~Model() = default;

void Model::add(std::unique_ptr<ModelRole> role, std::function<void()> body) {
  constexpr size_t kStackBytes = 32 * 1024;
  role->fiber_.start(kStackBytes, std::move(body));
  resume(*role, 0);
  roles_.push_back(std::move(role));
}

int64_t Model::run() {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    event.happen();
  }
  for (const auto& role : roles_)
    if (!role->fiber_.done()) throw std::logic_error("hopgemm.trace: a role of the model waits for ever");
  return now_;
}

void Model::plan(int64_t time, std::function<void()> happen) {
  events_.push({std::max(time, now_), planned_++, std::move(happen)});
}

void Model::resume(ModelRole& role, int64_t time) {
  plan(time, [&role] { role.fiber_.resume(); });
}

void Model::signal(int cta, uint32_t barrier, int arrivals, int64_t bytes) {
  Barrier& b = ctas_[cta].barriers.at(barrier);
  b.pending -= arrivals;
  b.tx += bytes;
  if (b.pending > 0 || b.tx != 0) return;
  ++b.phase;
  b.pending = b.arrivals;
  const int stage = static_cast<int>(barrier - barrier_offset(launch_.config, 0)) / 8;
  if (stage < launch_.config.num_stages) {  // a full barrier
    const uint32_t now = static_cast<uint32_t>(now_);
    trace_[cta * kNumRoles + kWatcherRole].push_back({now, now, Op::kLanded, static_cast<uint32_t>(stage)});
  }
  for (ModelRole* role : b.waiters) resume(*role, now_ + launch_.costs.barrier);
  b.waiters.clear();
}

void Model::meet(Meeting& meeting, ModelRole& role, int participants) {
  meeting.push_back(&role);
  if (static_cast<int>(meeting.size()) == participants) {
    for (ModelRole* r : meeting) resume(*r, now_ + launch_.costs.remote);
    meeting.clear();
  }
  role.fiber_.pause();
}

// ---- a role -----------------------------------------------------------------------------------------------

const ModelLaunch& ModelRole::launch() const { return model_.launch_; }
int ModelRole::cluster() const { return cta_ / cluster_size(launch().config); }
int ModelRole::num_clusters() const { return launch().num_ctas / cluster_size(launch().config); }
int ModelRole::cta_rank() const { return cta_ % cluster_size(launch().config); }

uint32_t ModelRole::full(int stage) const {
  return barrier_offset(launch().config, full_index(launch().config, stage));
}
uint32_t ModelRole::empty(int stage) const {
  return barrier_offset(launch().config, empty_index(launch().config, stage));
}
uint32_t ModelRole::turn(int consumer) const {
  return barrier_offset(launch().config, turn_index(launch().config, consumer));
}

void ModelRole::sleep_until(int64_t time) {
  if (time <= model_.now_) return;
  model_.resume(*this, time);
  fiber_.pause();
}
void ModelRole::spend(int cycles) { sleep_until(model_.now_ + cycles); }

void ModelRole::init(uint32_t barrier, int arrivals) {
  Model::Barrier& b = model_.ctas_[cta_].barriers[barrier];
  b.arrivals = b.pending = arrivals;
}
void ModelRole::cta_sync() { model_.meet(model_.cta_meetings_[cta_], *this, kNumConsumers + 1); }
void ModelRole::cluster_sync() {
  const int participants = (kNumConsumers + 1) * cluster_size(launch().config);
  model_.meet(model_.cluster_meetings_[cluster()], *this, participants);
}

void ModelRole::wait(uint32_t barrier, uint32_t parity) {
  Model::Barrier& b = model_.ctas_[cta_].barriers.at(barrier);
  while ((b.phase & 1) == static_cast<int>(parity)) {
    b.waiters.push_back(this);
    fiber_.pause();
  }
}
void ModelRole::arrive(uint32_t barrier) { model_.signal(cta_, barrier, 1, 0); }
void ModelRole::arrive_expect_tx(uint32_t barrier, int bytes) { model_.signal(cta_, barrier, 1, bytes); }
void ModelRole::arrive_cluster(uint32_t barrier, uint32_t mask) {
  const int first = cta_ - cta_rank();
  for (int rank = 0; rank < cluster_size(launch().config); ++rank) {
    if (!(mask >> rank & 1)) continue;
    const int64_t delay = first + rank == cta_ ? 0 : launch().costs.remote;
    model_.plan(model_.now_ + delay,
                [this, to = first + rank, barrier] { model_.signal(to, barrier, 1, 0); });
  }
}

// ---- engines: each does one thing after the other ---------------------------------------------------------

void ModelRole::load_bytes(int bytes, uint32_t barrier, uint32_t mask) {
  Model::Cta& cta = model_.ctas_[cta_];
  spend(launch().costs.issue);
  cta.load_free = std::max<double>(cta.load_free, model_.now_) + bytes / launch().costs.load_bytes;
  const int first = cta_ - cta_rank();
  for (int rank = 0; rank < cluster_size(launch().config); ++rank) {
    if (!(mask >> rank & 1)) continue;
    model_.plan(static_cast<int64_t>(cta.load_free) + launch().costs.load_latency,
                [this, to = first + rank, barrier, bytes] { model_.signal(to, barrier, 0, -bytes); });
  }
}

void ModelRole::multiply() {
  const KernelConfig& c = launch().config;
  Model::Cta& cta = model_.ctas_[cta_];
  spend(launch().costs.issue);
  const double cycles = 2.0 * consumer_m(c) * c.tile_n * kTileK / launch().costs.flop;
  cta.mma_free = std::max<double>(cta.mma_free, model_.now_) + cycles;
  groups_done_.push_back(static_cast<int64_t>(cta.mma_free) + launch().costs.mma_latency);
}
void ModelRole::wait_groups(int pending) {
  const int count = static_cast<int>(groups_done_.size()) - pending;
  if (count > 0) sleep_until(groups_done_[count - 1]);
}

void ModelRole::store_piece() {
  Model::Cta& cta = model_.ctas_[cta_];
  spend(launch().costs.issue);
  cta.store_free = std::max<double>(cta.store_free, model_.now_) + kStagingBytes / launch().costs.store_bytes;
  stores_read_.push_back(static_cast<int64_t>(cta.store_free));
  stores_done_ = stores_read_.back() + launch().costs.store_latency;
}
void ModelRole::wait_stores(int pending) {
  const int count = static_cast<int>(stores_read_.size()) - pending;
  if (count > 0) sleep_until(stores_read_[count - 1]);
}
void ModelRole::store_drain() { sleep_until(stores_done_); }

}  // namespace hopgemm::trace
