// Configs that were measured on this machine's GPUs: what answers before select() where a table was set.
//
// One immutable table a process, replaced whole. make_plan() knows nothing of it: plan_tuned() is for calls
// that run here, and every config it takes has passed make_plan() by name.
#pragma once
#include <string>
#include <vector>

#include "api/gemm.h"

namespace hopgemm {

// What the speed of a config depends on: the problem as the kernel sees it, and the SMs it may use.
struct TuningKey {
  DType dtype = DType::kBF16, out_dtype = DType::kBF16;
  char majors[3] = "";  // "kk", "kn", "mk", "mn", after packing
  int64_t m = 0, n = 0, k = 0, batch_inner = 1, batch_outer = 1;
  int sm_count = 0;
  bool batch_invariant = false;
  bool operator==(const TuningKey&) const = default;
};

struct TunedConfig {
  std::string gpu;  // DeviceFacts::name
  TuningKey key;
  std::string config;
};

// False where no kernel would run: nothing to compute, or a problem that make_plan() refuses.
HOPGEMM_API bool tuning_key(const Problem& problem, const DeviceFacts& facts, TuningKey& key);

// Replaces the table; empty: none. Calls that are being planned keep the old one.
HOPGEMM_API void set_tuned(const std::vector<TunedConfig>& configs);

// make_plan(), but where `config` is "" or "auto" the table answers first. An entry that make_plan() refuses,
// or with sums above kMaxSumsBytes, counts as absent.
HOPGEMM_API Status plan_tuned(const Problem& problem, const char* config, const DeviceFacts& facts,
                              Plan& plan);

}  // namespace hopgemm
