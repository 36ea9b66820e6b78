// Winners that were measured, one for each product that was: what answers before select()'s cost model, on
// the chip they were measured on. The table of an H200 SXM is h200_table.cc, which benchmarks/make_table.py
// writes; user's own measurements are not here (host/tuned.h).
#pragma once
#include <algorithm>
#include <span>
#include <tuple>

#include "host/select.h"
#include "host/swap.h"

namespace hopgemm {

// For which problems of its sizes an entry speaks. kInvariant: for those with batch_invariant alone, beside
// an entry with parts of K for the others; kAny: for both, unless it has parts.
enum class MeasuredDTypes : uint8_t { kBoth, kOnlyBF16, kOnlyF16 };
enum class MeasuredFor : uint8_t { kAny, kInvariant };

struct Measured {
  int m, n, k;
  MeasuredDTypes dtypes;
  MeasuredFor use;
  Config config;  // of whichever dtype
};

// HAZARD: the table is searched by halves; an entry whose K turns would make bits depend on a row's position
// where nobody asked for that; JAX programs of symbolic sizes have no room for more than kMaxSumsBytes. Each
// table asserts this of itself when it is compiled.
constexpr bool is_table(std::span<const Measured> table) {
  const auto place = [](const Measured& e) {
    const KernelConfig c = as_called(e.config.kernel);
    return std::tuple(c.a_major, c.b_major, e.n, e.m, e.k, e.use, e.dtypes);
  };
  return std::is_sorted(table.begin(), table.end(),
                        [&](const Measured& x, const Measured& y) { return place(x) < place(y); }) &&
         std::all_of(table.begin(), table.end(), [](const Measured& e) {
           const auto& [kernel, schedule] = e.config;
           const int64_t most_parts = schedule.tail + schedule.ranges;
           return schedule.k_period == 0 &&
                  most_parts * cluster_size(kernel) * kernel.tile_m * kernel.tile_n * 4 <= kMaxSumsBytes &&
                  (e.use == MeasuredFor::kAny || !parts_k(schedule));
         });
}

bool is_h200_sxm(const DeviceFacts& facts);  // what all of this was measured on

std::span<const Measured> h200_table();

// The entry nearest to a problem, if one lies near enough that its work would be laid out alike: the same
// majors, as many tiles of the entry's own size along M and along N, K within an eighth, and all that a
// config asked for by name has to hold. No instance: none, or another chip, several products, an fp32 result.
// `parts`: may K be summed in parts?
Choice measured(std::span<const Measured> table, const NormalProblem& problem, DType dtype,
                const DeviceFacts& facts, bool parts);

}  // namespace hopgemm
