// The configs of instances.def, without their kernels.
#pragma once
#include <vector>

#include "config/config.h"

namespace hopgemm::test {

inline std::vector<KernelConfig> shipped_configs() {
  std::vector<KernelConfig> all;
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (Major a : {Major::kK, Major::kMN}) {
      for (Major b : {Major::kK, Major::kMN}) {
#define HOPGEMM_SHAPE(tile_m, tile_n, cluster_m, cluster_n, stages, arrangement) \
  all.push_back({dtype, a, b, tile_m, tile_n, cluster_m, cluster_n, stages, Arrangement::arrangement});
#define HOPGEMM_K_MAJOR_B(...) \
  if (b == Major::kK) HOPGEMM_SHAPE(__VA_ARGS__)
#define HOPGEMM_MN_MAJOR_B(...) \
  if (b == Major::kMN) HOPGEMM_SHAPE(__VA_ARGS__)
#define HOPGEMM_SWAPPED(tile_m, tile_n, cluster_m, cluster_n, stages) \
  all.push_back({dtype, a, b, tile_m, tile_n, cluster_m, cluster_n, stages, Arrangement::kSwapped});
#define HOPGEMM_NARROW(...) \
  if (b == Major::kK) HOPGEMM_SWAPPED(__VA_ARGS__)
#include "config/instances.def"
#undef HOPGEMM_SHAPE
#undef HOPGEMM_K_MAJOR_B
#undef HOPGEMM_MN_MAJOR_B
#undef HOPGEMM_SWAPPED
#undef HOPGEMM_NARROW
      }
    }
  }
  return all;
}

// And the widest tile that config.h allows: two instructions a row, the largest accumulator.
constexpr KernelConfig kWidest{
    DType::kBF16, Major::kK, Major::kMN, 128, 320, 1, 1, 3, Arrangement::kCooperative};
inline std::vector<KernelConfig> possible_configs() {
  std::vector<KernelConfig> all = shipped_configs();
  all.push_back(kWidest);
  return all;
}

}  // namespace hopgemm::test
