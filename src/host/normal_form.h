// A problem as the kernel sees it: strides of size-1 dimensions rewritten, batch dimensions merged to at most
// two, a batch that shares B folded into M, majors found, operands that TMA cannot read marked for packing.
// Pure; pointers are only looked at for alignment and overlap.
#pragma once
#include "api/gemm.h"
#include "config/config.h"
#include "kernel/params.h"

namespace hopgemm {

// One operand, `mn` x k.
struct NormalOperand {
  const void* data;
  Major major;
  int64_t mn_stride, k_stride;
  int64_t batch_inner_stride, batch_outer_stride;  // 0: broadcast
  bool pack;
  // What pack() reads where `pack` is set; the fields above then describe the packed copy (data is filled in
  // by gemm()).
  Matrix source;  // its row dimension is mn, its column dimension k
  int source_batch_dims;
  int64_t source_batch[kMaxBatchDims];
  int64_t packed_bytes;
};

struct NormalProblem {
  Path path;
  bool swapped;  // d' = b' a': m and n, a and b have changed places
  int64_t m, n, k;
  int64_t batch_inner, batch_outer;
  NormalOperand a, b;
  EpilogueParams epilogue;
};

// What the workspace begins with; the sums of a tail follow (tail.h).
inline int64_t packed_bytes(const NormalProblem& p) { return p.a.packed_bytes + p.b.packed_bytes; }

Status normalize(const Problem& problem, NormalProblem& normal);

}  // namespace hopgemm
