// The two small kernels beside the product: pack, for operands that TMA cannot read, and fill, for products
// without a sum.
#pragma once
#include "host/normal_form.h"

namespace hopgemm {

// Copies what is marked for it (mn x k, any strides, batches) into `workspace`, packed_bytes of both, and
// points the operands there: K-major rows of mn_stride elements, batch after batch. The pad of each row stays
// unwritten: the tensor map ends before it. One launch for both.
Status pack_operands(NormalProblem& problem, void* workspace, void* stream);

// d = beta * c + bias.
Status fill(const NormalProblem& problem, void* stream);

// Loads both kernels onto the current device.
Status load_pack_and_fill();

}  // namespace hopgemm
