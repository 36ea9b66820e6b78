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

}  // namespace hopgemm
