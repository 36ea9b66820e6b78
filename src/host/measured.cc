#include "host/measured.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "host/tail.h"

namespace hopgemm {
namespace {

constexpr int kWidestTile = 320;  // config.h allows no wider one
constexpr int kFarthestK = 8;  // K may differ by an eighth

bool is_for(MeasuredDTypes measured, DType dtype) {
  return measured == MeasuredDTypes::kBoth ||
         (measured == MeasuredDTypes::kOnlyF16) == (dtype == DType::kF16);
}

// Rows that are a multiple of 16 bytes leave by TMA, others do not.
bool is_aligned(int64_t n) { return n % 8 == 0; }

bool answers(const Measured& e, const NormalProblem& p, DType dtype, bool parts) {
  if (std::abs(p.k - e.k) * kFarthestK > e.k || std::abs(p.m - e.m) >= kWidestTile) return false;
  const KernelConfig c = as_called(e.config.kernel);
  const Schedule& s = e.config.schedule;
  const int k_tiles = ceil_div(p.k, kTileK);
  return (parts ? e.use == MeasuredFor::kAny : !parts_k(s)) && is_for(e.dtypes, dtype) &&
         is_aligned(p.n) == is_aligned(e.n) && ceil_div(p.m, c.tile_m) == ceil_div(e.m, c.tile_m) &&
         ceil_div(p.n, c.tile_n) == ceil_div(e.n, c.tile_n) &&
         is_valid_split(e.config.kernel, s.split, k_tiles) &&
         is_valid_tail(e.config.kernel, s, count_blocks(e.config.kernel, p), k_tiles);
}

// Sum of |log| of the three ratios, as the exponential of that.
double distance(const Measured& e, const NormalProblem& p) {
  auto ratio = [](double x, double y) { return x < y ? y / x : x / y; };
  return ratio(double(e.m), double(p.m)) * ratio(double(e.n), double(p.n)) * ratio(double(e.k), double(p.k));
}

}  // namespace

bool is_h200_sxm(const DeviceFacts& facts) {
  return facts.sm_count == 132 && !std::strcmp(facts.name, "NVIDIA H200");
}

Choice measured(std::span<const Measured> table, const NormalProblem& p, DType dtype,
                const DeviceFacts& facts, bool parts) {
  Choice choice{};
  if (!is_h200_sxm(facts) || p.batch_inner * p.batch_outer != 1 || size_of(p.epilogue.d.dtype) != 2)
    return choice;
  const auto majors_and_n = [](const Measured& e) {
    const KernelConfig c = as_called(e.config.kernel);
    return std::tuple(c.a_major, c.b_major, int64_t{e.n});
  };
  const auto first =
      std::lower_bound(table.begin(), table.end(), std::tuple(p.a.major, p.b.major, p.n - kWidestTile + 1),
                       [&](const Measured& e, const auto& wanted) { return majors_and_n(e) < wanted; });
  const std::tuple end(p.a.major, p.b.major, p.n + kWidestTile);
  const Measured* best = nullptr;
  for (auto e = first; e != table.end() && majors_and_n(*e) < end; ++e)
    if (answers(*e, p, dtype, parts) && (!best || distance(*e, p) < distance(*best, p))) best = &*e;
  if (!best || smem_bytes(best->config.kernel) > facts.max_smem_bytes) return choice;
  KernelConfig kernel = best->config.kernel;
  kernel.dtype = dtype;
  choice.instance = find_instance(kernel);
  choice.schedule = best->config.schedule;
  std::snprintf(choice.reason, sizeof choice.reason, "measured on an H200 SXM at %dx%dx%d", best->m, best->n,
                best->k);
  return choice;
}

}  // namespace hopgemm
