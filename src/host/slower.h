// Products at which cuBLAS was measured to be faster than the kernel that is chosen for them: what
// hopgemm.torch.override() leaves to it. The list of an H200 SXM is h200_slower.cc, which
// benchmarks/make_slower.py writes.
#pragma once
#include <algorithm>
#include <span>

#include "host/measured.h"

namespace hopgemm {

struct Product {
  int m, n, k;
  Major a, b;
};

std::span<const Product> h200_slower();

inline bool is_slower(const NormalProblem& p, const DeviceFacts& facts) {
  return is_h200_sxm(facts) && p.batch_inner * p.batch_outer == 1 && size_of(p.epilogue.d.dtype) == 2 &&
         std::ranges::any_of(h200_slower(), [&](const Product& x) {
           return x.m == p.m && x.n == p.n && x.k == p.k && x.a == p.a.major && x.b == p.b.major;
         });
}

}  // namespace hopgemm
