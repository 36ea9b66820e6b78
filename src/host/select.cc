#include "host/select.h"

#include <algorithm>
#include <cmath>

#include "host/swap.h"
#include "host/tail.h"

namespace hopgemm {
namespace {

// SM cycles. 4096 dense 16-bit FLOP a cycle is the chip's rate; the other constants are fits to what an H200
// took for 99 products (docs/notes/2026-11-29-selection.md), and for 395 more with tiles of all widths
// (docs/notes/2026-11-30-widths.md).
constexpr double kFlopPerCycle = 4096;
constexpr double kL2BytesPerCycle = 66;   // what one SM gets from L2 when all of them pull
constexpr double kMinStepCycles = 250;    // a step of K takes so long however little there is to multiply
constexpr double kRingCycles = 3100;  // of a load when all SMs pull: a ring that holds less waits for it
constexpr double kTurnaroundCycles = 1300;  // between two tiles of a cooperative kernel: drain, round, refill
constexpr double kHandoverCycles = 250;  // from one ping-pong consumer to the other
// Of small products, fitted to 345 more (docs/notes/2026-11-29-small-m.md).
constexpr double kLaunchCycles = 5300;
constexpr double kLatencyCycles = 2300;  // of a load; a ring hides as much of it as it has stages
constexpr double kIngestBytesPerCycle = 66;  // what one SM takes in when few pull
constexpr double kDramShare = 0.94;  // of what the memory's pins carry
constexpr double kL2BytesPerCycleInAll = 2600;
constexpr double kExchangeCycles = 800;  // each round of partial sums (docs/notes/2026-11-30-way-out.md)
constexpr double kOwnCycles = 300;  // the same without a split
constexpr double kAddCycles = 3500;  // until the kernel that adds a tail is at work, and until it is gone

// A narrow instruction feeds the tensor cores less well (shared-memory reads of A weigh more).
double mma_efficiency(const KernelConfig& c) {
  const int n = c.tile_n;
  return n >= 224 ? 0.9 : n >= 128 ? 0.885 : n >= 112 ? 0.875 : n >= 96 ? 0.86 : 0.68;
}

double epilogue_cycles(const KernelConfig& c, int result_bytes) {
  return 700 + static_cast<double>(c.tile_m) * c.tile_n * result_bytes / 25;
}

double tile_cycles(const KernelConfig& c, double k_tiles, int result_bytes) {
  const double mma = 2.0 * c.tile_m * c.tile_n * kTileK / kFlopPerCycle / mma_efficiency(c);
  const double load = (a_stage_bytes(c) / c.cluster_n + b_stage_bytes(c) / c.cluster_m) / kL2BytesPerCycle;
  const double main_loop = k_tiles * std::max({mma, load, kMinStepCycles, kRingCycles / c.num_stages});
  const double epilogue = epilogue_cycles(c, result_bytes);
  // Ping-pong hides the epilogue under the other consumer's main loop, cooperative consumers under their own
  // next one; an fp32 result of theirs is not hidden.
  if (!is_cooperative(c)) return std::max(main_loop + kHandoverCycles, (main_loop + epilogue) / 2);
  return kTurnaroundCycles + (result_bytes == 2 ? std::max(main_loop, epilogue) : main_loop + epilogue);
}

// Clusters that are resident at once. GPCs have unequal numbers of SMs, so that large clusters leave some
// idle.
int resident_clusters(int size, int sm_count) {
  return size <= 2 ? sm_count / size : size <= 4 ? sm_count * 10 / (11 * 4) : sm_count / 10;
}

constexpr double kFewestSteps = 4;  // of K in a range of a tail
constexpr double kManyWaves = 8;

double compulsory_bytes(const NormalProblem& p) {
  const double batch = double(p.batch_inner) * double(p.batch_outer);
  const double m = double(p.m), n = double(p.n), k = double(p.k);
  return batch * (2 * (m * k + k * n) + m * n * double(size_of(p.epilogue.d.dtype)));
}

// Tiles and K of a problem as one kernel deals with them.
struct Work {
  double blocks, clusters, k_tiles;
  int result_bytes;
};

// What a kernel that is not swapped takes, from what its SMs have to do. dram: cycles for the operands and
// the result to pass between chip and memory.
double elapsed_cycles(double busy, const NormalProblem& p, double dram) {
  // Rows that are mostly padding: 16x6144x4096 took 1.27 times what full tiles take (docs/notes, small M).
  if (p.m <= kMmaM / 2) busy *= 1.27;
  // These get 0.96 of what swapped kernels get from DRAM. Of two that wait for it, the less busy one is
  // faster.
  const double least = kLaunchCycles + dram / 0.96;
  return busy >= least ? busy : least + 0.03 * busy;
}

// Products of about 0.2 ms and more run where the board is at its power limit, in training steps, and speed
// is energy: a kernel that brings more bytes into its SMs for each product is slower (sustained, on an H200:
// 128x128 by 3%, 128x224 by 1.5 to 2.5%).
double power_limited(const KernelConfig& c, double cycles) {
  constexpr double kLongCycles = 3e5;
  if (cycles < kLongCycles) return cycles;
  const int tile = c.tile_m * c.tile_n;
  return cycles * (tile >= 128 * 256 ? 1 : tile >= 128 * 224 ? 1.025 : 1.04);
}

double estimate_cycles(const KernelConfig& c, const NormalProblem& p, const Work& w, double dram) {
  const double waves = std::ceil(w.blocks / w.clusters);
  const double busy = waves * tile_cycles(c, w.k_tiles, w.result_bytes) + epilogue_cycles(c, w.result_bytes);
  return power_limited(c, elapsed_cycles(busy, p, dram));
}

// A tail of the last wave's tiles, each in as many ranges as there are clusters for. HAZARD: ranges that end
// inside tiles would fill the last clusters, too; but tiles beside each other would then be at different
// steps of K, and find nothing in L2 that the other has read (512x512x65536: 0.54 of cuBLAS, 0.97 with whole
// tiles).
struct TailChoice {
  int tail = 0, ranges = 0;
  double cycles = INFINITY;
};
TailChoice estimate_tail(const KernelConfig& c, const NormalProblem& p, const Work& w, double dram) {
  const double whole = std::floor(w.blocks / w.clusters), tail = w.blocks - whole * w.clusters;
  // After many waves the last one hardly counts, and what does is energy: walks that share panels in L2.
  if (whole >= kManyWaves || tail == 0 || tail > kMaxTail || tail * w.k_tiles > double(kMaxPlaces) / 16)
    return {};
  // At least so many steps a range, that its epilogue is worth it.
  const double parts = std::min(std::floor(w.clusters / tail), std::floor(w.k_tiles / kFewestSteps));
  if (parts < 2) return {};
  const double steps = std::ceil(w.k_tiles / parts), ranges = tail * parts;
  const double part = double(cluster_size(c)) * c.tile_m * c.tile_n * sizeof(float), sums = ranges * part;
  if (sums + tail * part > double(kMaxSumsBytes)) return {};  // num_parts() at most
  const double range = tile_cycles(c, steps, sizeof(float)) + epilogue_cycles(c, sizeof(float));
  const double busy = whole * tile_cycles(c, w.k_tiles, w.result_bytes) + range;
  const double add = kAddCycles + 2 * sums / kL2BytesPerCycleInAll;
  const double cycles = add + elapsed_cycles(busy, p, dram);
  return {static_cast<int>(tail), static_cast<int>(ranges), power_limited(c, cycles)};
}

// Swapped kernels: bandwidth and latency. A step takes as long as its bytes need to come in, as the ring
// needs to hide the memory's latency, or as wgmma; all of it at least as long as DRAM and L2 need for theirs.
double estimate_swapped_cycles(const KernelConfig& c, int split, const NormalProblem& p, int sm_count,
                               double dram) {
  const int clusters = resident_clusters(cluster_size(c, split), sm_count);
  if (clusters == 0) return INFINITY;
  const double rounds = std::ceil(count_blocks(c, p) / clusters);
  const double steps = std::ceil(double(ceil_div(p.k, kTileK)) / split);
  const double mma_rate = c.tile_n >= 64 ? 0.9 : c.tile_n >= 32 ? 0.63 : 0.38;
  const double step = std::max({tx_bytes(c) / kIngestBytesPerCycle, kLatencyCycles / c.num_stages,
                                2.0 * c.tile_m * c.tile_n * kTileK / kFlopPerCycle / mma_rate});
  const double batch = double(p.batch_inner) * double(p.batch_outer), k = double(p.k);
  const double l2 =
      batch * 2 * k *
      (double(p.n) * ceil_div(p.m, c.tile_n) + double(p.m) * ceil_div(p.n, c.tile_m) / c.cluster_m);
  return kLaunchCycles + std::max({rounds * steps * step, dram, l2 / kL2BytesPerCycleInAll}) +
         rounds * (split > 1 ? kExchangeCycles : kOwnCycles);
}

// The narrowest swapped tile that holds the rows, up to 64; 0: too many rows for any of them to win.
int swapped_width(const NormalProblem& p) {
  if (p.m > 256) return 0;
  if (p.m > 32 || p.a.major == Major::kMN) return 64;
  return p.m > 16 ? 32 : 16;
}

// One CTA of every pair would have no row, or no column, of the result.
bool has_idle_ctas(const KernelConfig& config, const NormalProblem& p) {
  const KernelConfig c = as_called(config);
  return p.m <= c.tile_m * (c.cluster_m - 1) || p.n <= c.tile_n * (c.cluster_n - 1);
}

// Clusters that read the same panels drift apart (tile_scheduler.h). Where the panels of a wave are more than
// twice what L2 holds, that costs more than a launch every two waves, or every four where waves and strips do
// not fall together: 16384^3 is 2% faster by it, 8192x8192x28672 0.7 to 1%; 12288^3 and 8192^3, whose panels
// are smaller, are not (docs/notes/2026-11-30-drift.md).
int waves_per_launch(const KernelConfig& c, const NormalProblem& p, const Schedule& s, int sm_count,
                     int64_t l2_bytes) {
  const int clusters = (s.max_ctas ? s.max_ctas : sm_count) / cluster_size(c);
  const int rows = c.tile_m * c.cluster_m, columns = c.tile_n * c.cluster_n;  // of a cluster tile
  const int m_blocks = ceil_div(p.m, rows), n_blocks = ceil_div(p.n, columns);
  // A wave: so many blocks along a strip, and across it, or across several where they are short.
  const int strip = std::min(s.group, n_blocks), length = std::min(ceil_div(clusters, strip), m_blocks);
  const int across = std::min(ceil_div(clusters, std::max(length, 1)), n_blocks);
  const double shared = (across > 1 ? length * rows : 0) + (length > 1 ? across * columns : 0);
  if (shared * double(p.k) * 2 <= 2 * double(l2_bytes)) return 0;
  const int waves = s.max_ctas ? 2 : 4;
  return count_blocks(c, p) > double(waves) * clusters ? waves : 0;
}

}  // namespace

double count_blocks(const KernelConfig& config, const NormalProblem& p) {
  const KernelConfig c = as_called(config);
  return double(ceil_div(p.m, c.tile_m * c.cluster_m)) * ceil_div(p.n, c.tile_n * c.cluster_n) *
         double(p.batch_inner) * double(p.batch_outer);
}

int grid_size(const Config& config, const TileGrid& tiles, int sm_count) {
  const int size = cluster_size(config.kernel, config.schedule.split);
  int ctas = sm_count;
  if (config.schedule.max_ctas) ctas = std::min(ctas, config.schedule.max_ctas);
  return std::max(1, std::min(num_items(tiles), ctas / size)) * size;
}

// A pool of a multiple of 8 CTAs lets waves fall together with the strips, so that a wave finds in L2 what
// the last one read (8192^3: 1.07 GB from DRAM with 128 CTAs, 1.20 with 132;
// docs/notes/2026-11-29-tile-order.md). Only where it costs no wave.
Schedule default_schedule(const KernelConfig& c, const NormalProblem& p, int sm_count, int64_t l2_bytes) {
  Schedule s;
  if (is_swapped(c)) return s;
  const int blocks = static_cast<int>(count_blocks(c, p));
  const int aligned = sm_count / (s.group * cluster_size(c)) * s.group * cluster_size(c);
  auto waves = [&](int ctas) { return ceil_div(blocks, ctas / cluster_size(c)); };
  if (aligned > 0 && waves(aligned) > 1 && waves(aligned) == waves(sm_count)) s.max_ctas = aligned;
  s.waves = waves_per_launch(c, p, s, sm_count, l2_bytes);
  return s;
}

Choice select(const NormalProblem& p, DType dtype, const DeviceFacts& facts, int sm_count, bool parts) {
  Choice best{};
  best.fewest_blocks = INFINITY;
  double best_cycles = INFINITY;
  Schedule best_cut;
  const int k_tiles = ceil_div(p.k, kTileK), width = swapped_width(p);
  const double dram = compulsory_bytes(p) / (kDramShare * facts.dram_bytes_per_cycle);
  auto consider = [&](const Instance& instance, double cycles, const Schedule& cut) {
    if (cycles >= best_cycles) return;
    best_cycles = cycles, best.instance = &instance, best_cut = cut;
  };
  for (int i = 0; i < kNumInstances; ++i) {
    const KernelConfig& c = kInstances[i].config;
    if (!fits(c, p, dtype) || smem_bytes(c) > facts.max_smem_bytes || has_idle_ctas(c, p)) continue;
    const double blocks = count_blocks(c, p);
    best.fewest_blocks = std::min(best.fewest_blocks, blocks);
    if (blocks > kMaxBlocks) continue;
    if (!is_swapped(c)) {
      const Work work{blocks, double(resident_clusters(cluster_size(c), sm_count)), double(k_tiles),
                      static_cast<int>(size_of(p.epilogue.d.dtype))};
      if (work.clusters == 0) continue;
      consider(kInstances[i], estimate_cycles(c, p, work, dram), {});
      if (!parts) continue;
      const TailChoice tail = estimate_tail(c, p, work, dram);
      consider(kInstances[i], tail.cycles, {.tail = tail.tail, .ranges = tail.ranges});
    } else if (c.tile_n == width) {
      for (int split = 1; is_valid_split(c, split, k_tiles) && (split == 1 || parts); split *= 2)
        consider(kInstances[i], estimate_swapped_cycles(c, split, p, sm_count, dram), {.split = split});
    }
  }
  if (!best.instance) return best;
  if (best_cut.tail == 0)
    best.schedule = default_schedule(best.instance->config, p, sm_count, facts.l2_bytes);
  best.schedule.split = best_cut.split, best.schedule.tail = best_cut.tail,
  best.schedule.ranges = best_cut.ranges;
  std::snprintf(best.reason, sizeof best.reason, "cost model: %lld cycles on %d SMs",
                std::llround(best_cycles), sm_count);
  return best;
}

}  // namespace hopgemm
