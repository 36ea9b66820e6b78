// Which config for which problem. Pure: sizes, majors and device facts in, config and reason out.
#pragma once
#include <algorithm>

#include "config/instances.h"
#include "host/normal_form.h"

namespace hopgemm {

struct Choice {
  const Instance* instance;  // nullptr: none fits
  Schedule schedule;
  double fewest_blocks;  // that any kernel which fits would make
  char reason[160];
};

inline int sms_to_use(const Problem& p, const DeviceFacts& facts) {
  return p.sm_limit > 0 ? std::min(p.sm_limit, facts.sm_count) : facts.sm_count;
}

// `parts`: may K be summed in parts, so that a sum depends on the config?
Choice select(const NormalProblem& problem, DType dtype, const DeviceFacts& facts, int sm_count, bool parts);

// The walk that suits a kernel on a problem; what select() gives and what a config named without a schedule
// gets.
Schedule default_schedule(const KernelConfig& config, const NormalProblem& problem, int sm_count,
                          int64_t l2_bytes);

// Cluster tiles of the result. The walk counts them in 32 bits.
double count_blocks(const KernelConfig& config, const NormalProblem& problem);
inline constexpr double kMaxBlocks = 1e9;

// CTAs that work at once: whole clusters, at most one CTA an SM.
int grid_size(const Config& config, const TileGrid& tiles, int sm_count);

}  // namespace hopgemm
