#include "host/select.h"

#include <algorithm>
#include <cmath>

namespace hopgemm {
namespace {

// SM cycles. 4096 dense 16-bit FLOP a cycle is the chip's rate; the other constants are a least-squares fit
// to 99 products measured on an H200 (docs/notes/2026-11-29-selection.md), the efficiency of 128 columns less
// 4% so that a tie in time goes to the larger tile, which needs less energy.
constexpr double kFlopPerCycle = 4096;
constexpr double kL2BytesPerCycle = 58;   // what one SM gets from L2 when all of them pull
constexpr double kMinStepCycles = 300;    // a step of K takes so long however little there is to multiply
constexpr double kTurnaroundCycles = 1300;  // between two tiles of a cooperative kernel: drain, round, refill
constexpr double kHandoverCycles = 250;  // from one ping-pong consumer to the other

// A narrow instruction feeds the tensor cores less well (shared-memory reads of A weigh more).
double mma_efficiency(const KernelConfig& c) {
  return c.tile_n >= 192 ? 0.91 : c.tile_n >= 128 ? 0.88 : 0.68;
}

double epilogue_cycles(const KernelConfig& c, int result_bytes) {
  return 700 + static_cast<double>(c.tile_m) * c.tile_n * result_bytes / 25;
}

double tile_cycles(const KernelConfig& c, double k_tiles, int result_bytes) {
  const double mma = 2.0 * c.tile_m * c.tile_n * kTileK / kFlopPerCycle / mma_efficiency(c);
  const double load = (a_stage_bytes(c) / c.cluster_n + b_stage_bytes(c) / c.cluster_m) / kL2BytesPerCycle;
  const double main_loop = k_tiles * std::max({mma, load, kMinStepCycles});
  const double epilogue = epilogue_cycles(c, result_bytes);
  // Ping-pong hides the epilogue under the other consumer's main loop, cooperative consumers under their own
  // next one; an fp32 result of theirs is not hidden.
  if (!is_cooperative(c)) return std::max(main_loop + kHandoverCycles, (main_loop + epilogue) / 2);
  return kTurnaroundCycles + (result_bytes == 2 ? std::max(main_loop, epilogue) : main_loop + epilogue);
}

double estimate_cycles(const KernelConfig& c, const NormalProblem& p, int sm_count) {
  const TileGrid grid =
      make_tile_grid({c, {}}, p.m, p.n, static_cast<int>(p.batch_inner), static_cast<int>(p.batch_outer));
  const int clusters = sm_count / cluster_size(c);
  if (clusters == 0) return INFINITY;
  const double waves = std::ceil(static_cast<double>(grid.num_blocks) / clusters);
  const double k_tiles = ceil_div(p.k, kTileK);
  const int result_bytes = static_cast<int>(size_of(p.epilogue.d.dtype));
  return waves * tile_cycles(c, k_tiles, result_bytes) + epilogue_cycles(c, result_bytes);
}

}  // namespace

int grid_size(const Config& config, const TileGrid& tiles, int sm_count) {
  const int size = cluster_size(config.kernel);
  int ctas = sm_count;
  if (config.schedule.max_ctas) ctas = std::min(ctas, config.schedule.max_ctas);
  return std::max(1, std::min(tiles.num_blocks, ctas / size)) * size;
}

// A pool of a multiple of 8 CTAs lets waves fall together with the strips, so that a wave finds in L2 what
// the last one read (8192^3: 1.07 GB from DRAM with 128 CTAs, 1.20 with 132;
// docs/notes/2026-11-29-tile-order.md). Only where it costs no wave.
Schedule default_schedule(const KernelConfig& c, const NormalProblem& p, int sm_count) {
  Schedule s;
  const TileGrid grid =
      make_tile_grid({c, s}, p.m, p.n, static_cast<int>(p.batch_inner), static_cast<int>(p.batch_outer));
  const int aligned = sm_count / (s.group * cluster_size(c)) * s.group * cluster_size(c);
  auto waves = [&](int ctas) { return ceil_div(grid.num_blocks, ctas / cluster_size(c)); };
  if (aligned > 0 && waves(aligned) > 1 && waves(aligned) == waves(sm_count)) s.max_ctas = aligned;
  return s;
}

Choice select(const NormalProblem& p, DType dtype, const DeviceFacts& facts, int sm_count) {
  Choice best{};
  double best_cycles = INFINITY;
  for (int i = 0; i < kNumInstances; ++i) {
    const KernelConfig& c = kInstances[i].config;
    if (c.dtype != dtype || c.a_major != p.a.major || c.b_major != p.b.major ||
        smem_bytes(c) > facts.max_smem_bytes)
      continue;
    const double cycles = estimate_cycles(c, p, sm_count);
    if (cycles < best_cycles) {
      best_cycles = cycles;
      best.instance = &kInstances[i];
    }
  }
  if (!best.instance) return best;
  best.schedule = default_schedule(best.instance->config, p, sm_count);
  std::snprintf(best.reason, sizeof best.reason, "cost model: %lld cycles on %d SMs",
                std::llround(best_cycles), sm_count);
  return best;
}

}  // namespace hopgemm
