// The two small kernels beside the product: pack, for operands that TMA cannot read, and fill, for products
// without a sum.
#pragma once
#include "host/normal_form.h"

namespace hopgemm {

// Copies operand.source (mn x k, any strides, batches) to `destination`: K-major rows of operand.mn_stride
// elements, batch after batch. The pad of each row stays unwritten: the tensor map ends before it.
Status pack(const NormalOperand& operand, int64_t mn, int64_t k, void* destination, void* stream);

// d = beta * c + bias.
Status fill(const NormalProblem& problem, void* stream);

// Loads both kernels onto the current device.
Status load_pack_and_fill();

}  // namespace hopgemm
