// What engines and epilogue compute: products of what lies in shared memory, scaling, rounding, staging.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "hw/emulated/role.h"

namespace hopgemm::emulated {

// ---- numbers ----------------------------------------------------------------------------------------------

// By hand: the compiler's _Float16 calls into a libgcc newer than the wheel may ask for.
static float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return sign * (mantissa ? NAN : INFINITY);
  return sign * (exponent ? std::ldexp(1024.0f + mantissa, exponent - 25) : std::ldexp(1.0f * mantissa, -24));
}

static uint16_t float_to_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float x = std::fabs(value);
  if (std::isnan(x)) return sign | 0x7E00;
  if (x == 0.0f) return sign;
  const int exponent = std::isinf(x) ? 16 : std::max(std::ilogb(x), -14);  // -14: subnormals, too
  if (exponent > 15) return sign | 0x7C00;
  // In units of the last place, 1024 to 2048 of them (2048 carries into the exponent, and 65520 into
  // infinity).
  const int units = static_cast<int>(std::nearbyint(std::ldexp(x, 10 - exponent)));
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + units));
}

float to_float(DType dtype, uint16_t bits) {
  if (dtype == DType::kF16) {
    static const std::vector<float> table = [] {
      std::vector<float> t(1 << 16);
      for (int i = 0; i < 1 << 16; ++i) t[i] = half_to_float(static_cast<uint16_t>(i));
      return t;
    }();
    return table[bits];
  }
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t round_to(DType dtype, float value) {
  if (dtype == DType::kF16) return float_to_half(value);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float element(const EpilogueMatrix& x, DType half, int64_t index) {
  if (x.dtype == DType::kF32) return static_cast<const float*>(x.data)[index];
  return to_float(half, static_cast<const uint16_t*>(x.data)[index]);
}

// ---- wgmma ------------------------------------------------------------------------------------------------

// `extent` x k16 block whose descriptor starts at `start`, as floats [k][mn].
static void read_block(std::vector<uint8_t>& smem, int start, const OperandTile& tile, int extent,
                       DType dtype, float* out) {
  const Major major = tile.major;
  const int outer = major == Major::kK ? extent : kMmaK, inner = major == Major::kK ? kMmaK : extent;
  for (int o = 0; o < outer; ++o) {
    for (int i = 0; i < inner; i += 8) {
      // Rows follow each other; MN-major blocks go on in the next chunk.
      const int row = (major == Major::kK ? 0 : i / tile.chunk * kTileK) + o;
      const int address = start + row * row_bytes(tile) + i % tile.chunk * 2;
      uint8_t* const from = &smem[swizzled(address, row_bytes(tile))];
      uint16_t bits[8];
      tsan::read(from, sizeof bits);
      std::memcpy(bits, from, sizeof bits);
      for (int j = 0; j < 8; ++j)
        out[major == Major::kK ? (i + j) * extent + o : o * extent + i + j] = to_float(dtype, bits[j]);
    }
  }
}

void Role::multiply(float* acc, int stage, int step, bool accumulate) {
  const KernelConfig& c = config();
  const int first_row = is_cooperative(c) ? consumer_ * consumer_m(c) : 0;
  static thread_local float a[kMmaK * kMmaM], b[kMmaK * kMaxTmaBox];
  for (int column = 0, n = first_mma_n(c.tile_n); column < c.tile_n; column += n, n = c.tile_n - column) {
    read_block(cta_.smem,
               b_offset(c, stage) + mma_offset(b_tile(c), column, 0) + mma_offset(b_tile(c), 0, step),
               b_tile(c), n, c.dtype, b);
    for (int row = 0; row < mma_rows(c); ++row) {
      read_block(
          cta_.smem,
          a_offset(c, stage) + mma_offset(a_tile(c), first_row, 0) + mma_offset(a_tile(c), row * kMmaM, step),
          a_tile(c), kMmaM, c.dtype, a);
      for (int i = 0; i < kMmaM; ++i) {
        float* const d = acc + (row * kMmaM + i) * c.tile_n + column;
        if (!accumulate) std::fill_n(d, n, 0.0f);
        for (int k = 0; k < kMmaK; k += 4) {
          const float *b0 = b + k * n, *b1 = b0 + n, *b2 = b1 + n, *b3 = b2 + n;
          const float a0 = a[k * kMmaM + i], a1 = a[(k + 1) * kMmaM + i], a2 = a[(k + 2) * kMmaM + i],
                      a3 = a[(k + 3) * kMmaM + i];
          for (int j = 0; j < n; ++j) d[j] += a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j];
        }
      }
    }
  }
}

// ---- the way out ------------------------------------------------------------------------------------------

void Role::require_accumulator() {
  if (known_done_ < static_cast<int>(groups_.size()))
    machine_.fail("the accumulator is read before its wgmma has been waited for");
}

void Role::scale_tile(float* acc, const EpilogueParams& e, const Tile& t) {
  require_accumulator();
  for (int i = 0; i < consumer_m(config()); ++i)
    for (int j = 0; j < config().tile_n; ++j) {
      float& value = acc[i * config().tile_n + j];
      value = scale_element(e, config().dtype, t, t.m + i, t.n + j, value);
    }
}

float scale_element(const EpilogueParams& e, DType half, const Tile& t, int m, int n, float value) {
  value *= e.alpha;
  if (m >= e.m || n >= e.n) return value;
  auto at = [&](const EpilogueMatrix& x) {
    return element(x, half,
                   t.batch_inner * x.batch_inner_stride + t.batch_outer * x.batch_outer_stride +
                       m * x.row_stride + n * x.col_stride);
  };
  if (e.c.data) value = std::fma(e.beta, at(e.c), value);
  return e.bias.data ? value + at(e.bias) : value;
}

void* write_element(const EpilogueParams& e, DType half, const Tile& t, int m, int n, float value) {
  const int64_t at = t.batch_inner * e.d.batch_inner_stride + t.batch_outer * e.d.batch_outer_stride +
                     m * e.d.row_stride + n * e.d.col_stride;
  char* const to = static_cast<char*>(const_cast<void*>(e.d.data)) + at * size_of(e.d.dtype);
  const uint16_t rounded = round_to(half, value);
  if (e.d.dtype == DType::kF32) std::memcpy(to, &value, sizeof value);
  else std::memcpy(to, &rounded, sizeof rounded);
  return to;
}

void Role::round_tile(const float* acc, uint16_t* rounded) {
  require_accumulator();
  for (int i = 0; i < consumer_m(config()) * config().tile_n; ++i)
    rounded[i] = round_to(config().dtype, acc[i]);
}

void Role::stage_piece(const void* piece, size_t row_bytes, int slot) {
  sometimes_pause();
  log("stage", slot, 0);
  const int offset = staging_offset(config(), consumer_, slot);
  access(cta_, offset, kStagingBytes, true, {agent_, tick_}, clock_, "staging writes");
  uint8_t* const staged = &cta_.staged[offset - operand_bytes(config())];
  for (int r = 0; r < kMmaM; ++r)
    for (int byte = 0; byte < kSwizzleBytes; byte += 16)
      std::memcpy(staged + swizzle128(r, byte), static_cast<const char*>(piece) + r * row_bytes + byte, 16);
  cta_.slots[consumer_][slot] = Cta::Slot::kWritten;
}

}  // namespace hopgemm::emulated
