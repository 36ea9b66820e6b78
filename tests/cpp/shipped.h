// The configs of instances.def, without their kernels.
#pragma once
#include <string_view>
#include <vector>

#include "config/config.h"

namespace hopgemm::test {

// Is the layout of these majors among `layouts`, such as "kk_mk"?
inline bool has_layout(std::string_view layouts, Major a, Major b) {
  const char layout[] = {a == Major::kK ? 'k' : 'm', b == Major::kK ? 'k' : 'n'};
  return layouts.find(std::string_view(layout, 2)) != layouts.npos;
}

inline std::vector<KernelConfig> shipped_configs() {
  std::vector<KernelConfig> all;
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (Major a : {Major::kK, Major::kMN}) {
      for (Major b : {Major::kK, Major::kMN}) {
#define HOPGEMM_TILE(layouts, tile_m, tile_n, cluster_m, cluster_n, stages, arrangement) \
  if (has_layout(#layouts, a, b))                                                        \
    all.push_back({dtype, a, b, tile_m, tile_n, cluster_m, cluster_n, stages, Arrangement::arrangement});
#define HOPGEMM_SWAPPED(layouts, ...) \
  if (has_layout(#layouts, a, b)) all.push_back({dtype, b, a, __VA_ARGS__, Arrangement::kSwapped});
#include "config/instances.def"
#undef HOPGEMM_TILE
#undef HOPGEMM_SWAPPED
      }
    }
  }
  return all;
}

// And the widest tile that config.h allows: two instructions a row, the largest accumulator.
constexpr KernelConfig kWidest{
    DType::kBF16, Major::kK, Major::kMN, 128, 320, 1, 1, 3, Arrangement::kCooperative};
// And an operand in chunks of 32 columns that a pair shares, which none of those that ship does.
constexpr KernelConfig kSharedHalfChunks{DType::kBF16,          Major::kK, Major::kMN, 192, 96, 2, 1, 5,
                                         Arrangement::kPingpong};
inline std::vector<KernelConfig> possible_configs() {
  std::vector<KernelConfig> all = shipped_configs();
  all.push_back(kWidest);
  all.push_back(kSharedHalfChunks);
  return all;
}

}  // namespace hopgemm::test
