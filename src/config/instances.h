// The table of compiled kernels; generate_instances.py writes its contents.
#pragma once
#include "config/config.h"

namespace hopgemm {

struct Instance {
  const char* name;  // bf16_kk_128x256x64_c2x1_s4_coop
  KernelConfig config;
  const void* (*kernel)();  // what the CUDA runtime launches
};

extern const Instance kInstances[];
extern const int kNumInstances;

// The compiled kernel with this config; nullptr: there is none.
inline const Instance* find_instance(const KernelConfig& config) {
  for (int i = 0; i < kNumInstances; ++i)
    if (kInstances[i].config == config) return &kInstances[i];
  return nullptr;
}

// One without a cluster that takes the same operands: of the same tile if there is one, else the first of its
// arrangement. The sums are the same, bit for bit, as long as K is in one part.
inline const Instance* find_without_cluster(KernelConfig config) {
  config.cluster_m = config.cluster_n = 1;
  if (const Instance* same = find_instance(config)) return same;
  for (int i = 0; i < kNumInstances; ++i) {
    const KernelConfig& c = kInstances[i].config;
    if (c.dtype == config.dtype && c.a_major == config.a_major && c.b_major == config.b_major &&
        c.arrangement == config.arrangement && cluster_size(c) == 1)
      return &kInstances[i];
  }
  return nullptr;
}

}  // namespace hopgemm
