// Written by benchmarks/make_table.py from nothing: no results yet.
#include <array>

#include "host/measured.h"

namespace hopgemm {
namespace {

using enum Major;
using enum Arrangement;
using enum MeasuredDTypes;
using enum MeasuredFor;
constexpr DType kAny16 = DType::kBF16;

// M, N, K, for which dtypes and problems, config.
// clang-format off
constexpr std::array<Measured, 0> kTable{{
}};
// clang-format on
static_assert(is_table(kTable));

}  // namespace

std::span<const Measured> h200_table() { return kTable; }

}  // namespace hopgemm
