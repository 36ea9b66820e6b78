// Which config for which problem. Pure: sizes, majors and device facts in, config and reason out.
#pragma once
#include "config/instances.h"
#include "host/normal_form.h"

namespace hopgemm {

struct Choice {
  const Instance* instance;
  Schedule schedule;
  char reason[160];
};

Choice select(const NormalProblem& problem, DType dtype, const DeviceFacts& facts, int sm_count);

// The walk that suits a kernel on a problem; what select() gives and what a config named without a schedule
// gets.
Schedule default_schedule(const KernelConfig& config, const NormalProblem& problem, int sm_count);

// CTAs that work at once: whole clusters, at most one CTA an SM.
int grid_size(const Config& config, const TileGrid& tiles, int sm_count);

}  // namespace hopgemm
