#include "host/select.h"

#include <algorithm>
#include <cmath>

namespace hopgemm {
namespace {

// SM cycles, from Hopper's rates: 4096 dense 16-bit FLOP a cycle (1024 multiply-adds of m64nNk16 rows), and what one SM
// gets from L2 when all of them pull.
constexpr double kFlopPerCycle = 4096;
constexpr double kL2BytesPerCycle = 48;
constexpr double kLaunchCycles = 3000;  // prologue, first loads, last stores

// A narrow instruction feeds the tensor cores less well (shared-memory reads of A weigh more).
double mma_efficiency(const KernelConfig& c) { return c.tile_n >= 192 ? 1.0 : c.tile_n >= 128 ? 0.96 : 0.85; }

double tile_cycles(const KernelConfig& c, double k_tiles, int result_bytes) {
  const double mma = 2.0 * c.tile_m * c.tile_n * kTileK / kFlopPerCycle / mma_efficiency(c);
  const double load = (a_stage_bytes(c) / c.cluster_n + b_stage_bytes(c) / c.cluster_m) / kL2BytesPerCycle;
  const double main_loop = k_tiles * std::max(mma, load);
  const double epilogue = 300 + static_cast<double>(c.tile_m) * c.tile_n * result_bytes / 64;
  // Ping-pong hides the epilogue under the other consumer's main loop, as far as that is long enough.
  return is_cooperative(c) ? main_loop + epilogue : std::max(main_loop + 100, (main_loop + epilogue) / 2);
}

double estimate_cycles(const KernelConfig& c, const NormalProblem& p, int sm_count) {
  const TileGrid grid = make_tile_grid({c, {}}, p.m, p.n, static_cast<int>(p.batch_inner), static_cast<int>(p.batch_outer));
  const int clusters = sm_count / cluster_size(c);
  if (clusters == 0) return INFINITY;
  const double waves = std::ceil(static_cast<double>(grid.num_blocks) / clusters);
  const double k_tiles = ceil_div(p.k, kTileK);
  return kLaunchCycles + waves * tile_cycles(c, k_tiles, static_cast<int>(size_of(p.epilogue.d.dtype)));
}

}  // namespace

int grid_size(const Config& config, const TileGrid& tiles, int sm_count) {
  const int size = cluster_size(config.kernel);
  int ctas = sm_count;
  if (config.schedule.max_ctas) ctas = std::min(ctas, config.schedule.max_ctas);
  return std::max(1, std::min(tiles.num_blocks, ctas / size)) * size;
}

Schedule default_schedule(const KernelConfig&, const NormalProblem&, int) { return {}; }

Choice select(const NormalProblem& p, DType dtype, const DeviceFacts& facts, int sm_limit) {
  const int sm_count = sm_limit > 0 ? std::min(sm_limit, facts.sm_count) : facts.sm_count;
  Choice best{};
  double best_cycles = INFINITY;
  for (int i = 0; i < kNumInstances; ++i) {
    const KernelConfig& c = kInstances[i].config;
    if (c.dtype != dtype || c.a_major != p.a.major || c.b_major != p.b.major || smem_bytes(c) > facts.max_smem_bytes) continue;
    const double cycles = estimate_cycles(c, p, sm_count);
    if (cycles < best_cycles) {
      best_cycles = cycles;
      best.instance = &kInstances[i];
    }
  }
  if (!best.instance) return best;
  best.schedule = default_schedule(best.instance->config, p, sm_count);
  std::snprintf(best.reason, sizeof best.reason, "cost model: %.0f cycles on %d SMs", best_cycles, sm_count);
  return best;
}

}  // namespace hopgemm
