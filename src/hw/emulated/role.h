// A role of the emulated kernel: the calls of hw/hw.h that need no template, and what the role knows.
#pragma once
#include "hw/emulated/machine.h"

namespace hopgemm::emulated {

class Role {
 public:
  Role(Machine& machine, int cta, int consumer);
  virtual ~Role() = default;  // the machine holds whatever is derived from it

  int cluster() const;
  int num_clusters() const;
  int cta_rank() const;
  int consumer() const { return consumer_; }
  bool is_leader() const { return consumer_ == 0; }

  uint32_t full(int stage) const;
  uint32_t empty(int stage) const;
  uint32_t turn(int consumer) const;
  uint32_t sums_full() const;
  uint32_t sums_empty() const;
  void init(uint32_t barrier, int arrivals);
  void fence_init();
  void cta_sync();
  void cluster_sync();
  void wait_for_launches() { waited_for_launches_ = true; }
  void allow_next_launch() {}
  void wait(uint32_t barrier, uint32_t parity);
  void arrive(uint32_t barrier);
  void arrive_expect_tx(uint32_t barrier, int bytes);
  void arrive_cluster(uint32_t barrier, uint32_t mask);
  void wait_peers(uint32_t barrier, uint32_t parity) { wait(barrier, parity); }
  void arrive_split(uint32_t barrier, int split);

  void mma_commit();
  void fence_proxy_async();
  void consumer_sync();
  void store(const TensorMap& map, int slot, int n, int m, int batch_inner, int batch_outer,
             CachePolicy policy);
  void store_drain();

 protected:
  void load_box(const TensorMap& map, int offset, uint32_t barrier, const int (&at)[4], uint32_t mask);
  void mma_tile(float* acc, int stage, bool accumulate);
  void wait_groups(int pending);
  void scale_tile(float* acc, const EpilogueParams& e, const Tile& t);
  void require_accumulator();
  void round_tile(const float* acc, uint16_t* rounded);
  void stage_piece(const void* piece, size_t row_bytes, int slot);
  void store_piece(const EpilogueParams& e, int slot, int columns, int m, int n, const Tile& t);
  void wait_stores_read(int pending);
  void send_tile(const float* acc, int split);
  void add_tile(float* acc, int split);
  void store_tile(const float* acc, const EpilogueParams& e, const Tile& t, int split);
  const KernelConfig& config() const;
  const Launch& launch() const;

 private:
  friend class Machine;
  struct Group {
    Clock clock;
    int unfinished = 0;
  };
  struct StoreGroup {
    Clock clock;
    bool read, done;
  };
  struct Blocked {
    enum class On { kNothing, kBarrier, kMeeting, kGroups, kStoresRead, kStores } on = On::kNothing;
    uint32_t barrier = 0, parity = 0;
    const Meeting* meeting = nullptr;
    int target = 0;  // generation, or how many must be done
  };

  void block(const Blocked& until);
  bool ready() const;
  void meet(Meeting& meeting, int participants);
  void arrive_remote(uint32_t barrier, int rank, const Clock& known);
  int cluster_ctas() const;
  int split_rank(int index) const;
  int accumulator_place(int thread, int index) const;
  void store_element(const EpilogueParams& e, const Tile& t, int m, int n, float value);
  void sometimes_pause();
  Job& issue(JobKind kind, int agent, std::function<bool(Job&)> step);
  void published();
  Barrier& find(Cta& cta, uint32_t barrier, const Clock& clock, const char* verb, bool as_engine = false);
  void count_bytes(Cta& to, uint32_t barrier, int bytes, const Job& job);
  void load_rows(const TensorMap& map, Cta& to, int offset, std::array<int, 4> at, int rows, const Job& job);
  void multiply(float* acc, int stage, int step, bool accumulate);
  void access(Cta& cta, int offset, int bytes, bool write, Epoch epoch, const Clock& clock, const char* what);
  void check_map(const TensorMap& map);
  void require_launches(const char* what);
  void claim_box(const void* matrix, int n, int m, int batch_inner, int batch_outer);
  bool in_order(int job) const;
  void learn_of_stores(int count);
  void log(const char* what, int where, int64_t value);

  Machine& machine_;
  Cta& cta_;
  const int consumer_, agent_;
  Fiber fiber_;
  Clock clock_, waited_;  // `waited_`: of the wgmma that are known to be done
  uint32_t tick_ = 1;
  Blocked blocked_;
  std::deque<std::unique_ptr<Job>> jobs_;
  std::deque<Group> groups_;
  std::deque<StoreGroup> stores_;
  int committed_ = 0, known_done_ = 0, k_steps_ = 0;
  std::map<uint32_t, int> last_phase_;  // that a wait of this role saw completed
  int speed_ = 1, window_ = 1;
  bool waited_for_launches_ = false;
};

// alpha * value + beta * c + bias of one element; c and bias outside the result are not read. `half`: what a
// 16-bit element is.
float scale_element(const EpilogueParams& e, DType half, const Tile& t, int m, int n, float value);
// Rounds an element and writes it to the result; returns where it lies there.
void* write_element(const EpilogueParams& e, DType half, const Tile& t, int m, int n, float value);
float to_float(DType dtype, uint16_t bits);
uint16_t round_to(DType dtype, float value);

}  // namespace hopgemm::emulated
