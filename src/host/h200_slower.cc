// Written by benchmarks/make_slower.py from 2026-11-30-h200-0b0c558-kn-single.json, 2026-11-30-h200-0b0c558-mn-single.json, 2026-11-30-h200-0b0c558-mk-single.json, 2026-11-30-h200-0b0c558-large-single.json, 2026-11-30-h200-0b0c558-large-long.json, 2026-11-30-h200-0b0c558-small-m256.json, 2026-11-30-h200-9ffa4d4-kk.json, 2026-11-30-h200-9ffa4d4-kn-mn-mk.json, 2026-12-01-h200-ab0134a-small-m256.json, 2026-12-01-h200-ab0134a-large.json.
#include "host/slower.h"

namespace hopgemm {

std::span<const Product> h200_slower() {
  using enum Major;
  static constexpr Product kProducts[] = {
      // clang-format off
      {1000, 1000, 1000, kMN, kK},  // 0.972
      {1024, 1024, 32768, kK, kK},  // 0.950
      {1024, 2112, 7168, kK, kMN},  // 0.971
      // clang-format on
  };
  return kProducts;
}

}  // namespace hopgemm
