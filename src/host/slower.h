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

// Only calls like those that were measured: one product and nothing else, of bfloat16, on all SMs.
inline bool is_slower(const Problem& problem, const NormalProblem& p, const DeviceFacts& facts) {
  const bool is_plain = problem.batch_dims == 0 && !(problem.c.data && problem.beta != 0) &&
                        !problem.bias.data && problem.a.dtype == DType::kBF16 &&
                        problem.d.dtype == DType::kBF16 && !p.a.pack && !p.b.pack;
  return is_plain && !problem.batch_invariant && is_h200_sxm(facts) &&
         sms_to_use(problem, facts) == facts.sm_count &&
         std::ranges::any_of(h200_slower(), [&](const Product& x) {
           return x.m == p.m && x.n == p.n && x.k == p.k && x.a == p.a.major && x.b == p.b.major;
         });
}

}  // namespace hopgemm
