// A Hopper GPU as a clock sees it: the role loops on a machine that moves no data and only says when things
// happen. A discrete-event simulation with a few costs; what it leaves out is in docs/trace.md.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "hw/emulated/fiber.h"
#include "kernel/layout.h"
#include "scheduler/tile_scheduler.h"
#include "trace/record.h"

namespace hopgemm::trace {

// SM cycles. The rates are the chip's and select.cc's; the latencies are round figures of an H200, and no
// fit.
struct Costs {
  int issue = 20;  // any call to an engine
  int barrier = 20;  // from the last arrival to the waiter
  int remote = 200;  // an arrival in another CTA of the cluster
  int load_latency = 800;  // of TMA, from L2
  double load_bytes = 58;  // a cycle and SM, from L2, when all SMs pull
  double flop = 0.91 * 4096;  // a cycle and SM, dense 16-bit
  int mma_latency = 60;  // from the last wgmma of a group to the end of the wait for it
  int round = 150;
  int stage = 120;  // a piece of 64 rows x 128 bytes
  double store_bytes = 64;  // read from shared memory, a cycle
  int store_latency = 600;  // until it is in memory
};

struct ModelLaunch {
  KernelConfig config;
  TileGrid grid;
  int num_ctas;
  Costs costs;
};

// Records of role `r` of CTA `i` at i * kNumRoles + r.
using Trace = std::vector<std::vector<Record>>;

class Model;

// The calls of hw/hw.h that need no template. Time passes only in here.
class ModelRole {
 public:
  ModelRole(Model& model, int cta, int consumer) : model_(model), cta_(cta), consumer_(consumer) {}
  virtual ~ModelRole() = default;

  int cluster() const;
  int num_clusters() const;
  int cta_rank() const;
  int consumer() const { return consumer_; }
  bool is_leader() const { return consumer_ == 0; }

  uint32_t full(int stage) const;
  uint32_t empty(int stage) const;
  uint32_t turn(int consumer) const;
  void init(uint32_t barrier, int arrivals);
  void fence_init() {}
  void cta_sync();
  void cluster_sync();
  void wait_for_launches() {}
  void allow_next_launch() {}
  void wait(uint32_t barrier, uint32_t parity);
  void arrive(uint32_t barrier);
  void arrive_expect_tx(uint32_t barrier, int bytes);
  void arrive_cluster(uint32_t barrier, uint32_t mask);

  void mma_commit() {}
  void fence_proxy_async() {}
  void consumer_sync() {}
  void store_drain();

 protected:
  void load_bytes(int bytes, uint32_t barrier, uint32_t mask);
  void multiply();
  void wait_groups(int pending);
  void spend(int cycles);
  void store_piece();
  void wait_stores(int pending);
  const ModelLaunch& launch() const;

 private:
  friend class Model;
  void sleep_until(int64_t time);

  Model& model_;
  const int cta_, consumer_;
  emulated::Fiber fiber_;
  std::vector<int64_t> groups_done_, stores_read_;  // by group, by store
  int64_t stores_done_ = 0;
};

class Model {
 public:
  Model(const ModelLaunch& launch, Trace& trace);
  ~Model();
  // `body` of each role runs until all have ended.
  void add(std::unique_ptr<ModelRole> role, std::function<void()> body);
  // Cycles in all. Throws std::logic_error where a role waits for ever.
  int64_t run();
  int64_t now() const { return now_; }

 private:
  friend class ModelRole;
  struct Barrier {
    int arrivals = 0, pending = 0, phase = 0;
    int64_t tx = 0;
    std::vector<ModelRole*> waiters;
  };
  struct Cta {
    std::map<uint32_t, Barrier> barriers;
    double load_free = 0, mma_free = 0, store_free = 0;  // when each engine has done all it was given
  };
  struct Event {
    int64_t time, number;  // events of one time happen in the order in which they were planned
    std::function<void()> happen;
    bool operator>(const Event& o) const { return time != o.time ? time > o.time : number > o.number; }
  };
  using Meeting = std::vector<ModelRole*>;

  void plan(int64_t time, std::function<void()> happen);
  void resume(ModelRole& role, int64_t time);
  void signal(int cta, uint32_t barrier, int arrivals, int64_t bytes);
  void meet(Meeting& meeting, ModelRole& role, int participants);

  const ModelLaunch launch_;
  Trace& trace_;
  int64_t now_ = 0, planned_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  std::vector<Cta> ctas_;
  std::vector<Meeting> cta_meetings_, cluster_meetings_;
  std::vector<std::unique_ptr<ModelRole>> roles_;
};

}  // namespace hopgemm::trace
