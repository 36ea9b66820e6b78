// Division by a number that is known before a kernel runs: a multiplication and two shifts. The GPU cannot
// divide integers: what stands for a division is some thirty instructions, each of which waits for the one
// before, and to find a tile of a walk takes several.
#pragma once
#include <bit>
#include <cstdint>

#include "hw/device.h"

namespace hopgemm {

// Divides 0 <= n < 2^31. With 2^(shift - 1) < value <= 2^shift, magic = ceil(2^(31 + shift) / value) is too
// large by less than 1, so that n * magic / 2^(31 + shift) is above n / value by less than 1 / value: never
// at the next integer. (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994,
// theorem 4.2.)
struct Divisor {
  int value = 0;
  uint32_t magic = 0;
  int shift = 0;

  Divisor() = default;
  // By division, so on the host. What is divided by a Divisor(0) means nothing.
  HOPGEMM_HOST_DEVICE constexpr explicit Divisor(int divisor) : value(divisor) {
    if (divisor <= 0) return;
    shift = std::bit_width(static_cast<uint32_t>(divisor - 1));
    magic = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + divisor - 1) / divisor);
  }
  HOPGEMM_HOST_DEVICE constexpr operator int() const { return value; }
};

HOPGEMM_HOST_DEVICE constexpr int operator/(int n, const Divisor& d) {
  const uint64_t product = uint64_t{2 * static_cast<uint32_t>(n)} * d.magic;
  return static_cast<int>(static_cast<uint32_t>(product >> 32) >> d.shift);
}
HOPGEMM_HOST_DEVICE constexpr int operator%(int n, const Divisor& d) { return n - n / d * d.value; }

}  // namespace hopgemm
