// From a normalized problem to the kernel's argument, and operands packed: what src/host does for the GPU.
#pragma once
#include "host/normal_form.h"
#include "hw/emulated/machine.h"

namespace hopgemm::emulated {

// `num_ctas`: a multiple of the cluster's size.
// `sums`: where those of a tail go (host/tail.h); nullptr where there is none.
Launch make_launch(const NormalProblem& problem, const Config& config, int num_ctas, float* sums = nullptr);

// What host/tail.h asks of the kernel that adds them.
void add_tail(const NormalProblem& problem, const KernelConfig& config, const TileGrid& grid,
              const float* sums);

// Packs what is marked for it into `workspace` (packed_bytes of both), and points the operands there.
void pack_operands(NormalProblem& problem, void* workspace);

}  // namespace hopgemm::emulated
