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

}  // namespace hopgemm
