// Where things lie: coordinates of every TMA box, shared-memory offsets, cluster masks, and the lane maps of
// accumulator and staging buffer. Constexpr integer maths only, the same on GPU, emulator and tests.
#pragma once
#include "config/config.h"
#include "hw/device.h"

namespace hopgemm {

// ---- clusters: rank = m_index + cluster_m * (n_index + cluster_n * split_index)
// -------------------------------------------------------------------

HOPGEMM_HOST_DEVICE constexpr int cluster_m_index(const KernelConfig& c, int rank) {
  return rank % c.cluster_m;
}
HOPGEMM_HOST_DEVICE constexpr int cluster_n_index(const KernelConfig& c, int rank) {
  return is_swapped(c) ? rank / c.cluster_m % c.cluster_n : rank / c.cluster_m;
}

// CTAs that share A: same rows, all columns of the cluster.
HOPGEMM_HOST_DEVICE constexpr uint32_t a_multicast_mask(const KernelConfig& c, int rank) {
  uint32_t mask = 0;
  for (int n = 0; n < c.cluster_n; ++n) mask |= 1u << (cluster_m_index(c, rank) + n * c.cluster_m);
  return mask << split_index(c, rank) * cluster_size(c);
}
// CTAs that share B: same columns, all rows of the cluster.
HOPGEMM_HOST_DEVICE constexpr uint32_t b_multicast_mask(const KernelConfig& c, int rank) {
  return ((1u << c.cluster_m) - 1) << (rank / c.cluster_m * c.cluster_m);
}
// All that share either: where the cluster is one row or column, every CTA of the same share of K.
HOPGEMM_HOST_DEVICE constexpr uint32_t peer_mask(const KernelConfig& c, int rank) {
  if (c.cluster_m == 1 || c.cluster_n == 1)
    return ((1u << cluster_size(c)) - 1) << split_index(c, rank) * cluster_size(c);
  return a_multicast_mask(c, rank) | b_multicast_mask(c, rank);
}

// ---- operand tiles
// ----------------------------------------------------------------------------------------------------
// K-major: rows of 64 K elements (128 bytes, swizzled), one after another; one box. MN-major: chunks 64 wide,
// each tile_k rows of 128 bytes; a box per chunk. Multicast shares: K-major along MN, MN-major along K.

struct OperandTile {
  int extent;  // along M or N
  Major major;
  int sharers;  // CTAs that each load one slice and multicast it
};
HOPGEMM_HOST_DEVICE constexpr OperandTile a_tile(const KernelConfig& c) {
  return {c.tile_m, c.a_major, c.cluster_n};
}
HOPGEMM_HOST_DEVICE constexpr OperandTile b_tile(const KernelConfig& c) {
  return {b_columns(c), c.b_major, c.cluster_m};
}

HOPGEMM_HOST_DEVICE constexpr int num_boxes(const OperandTile& t) {  // in one slice
  return t.major == Major::kK ? 1 : t.extent / kChunkN;
}
HOPGEMM_HOST_DEVICE constexpr int box_rows(const OperandTile& t) {  // rows of 128 bytes
  return (t.major == Major::kK ? t.extent : kTileK) / t.sharers;
}

// Box `box` of slice `slice`: element coordinates (unit-stride dimension first) relative to the tile's (mn,
// k) origin, and its byte offset in the stage.
struct Box {
  int inner, outer, offset_bytes;
};
HOPGEMM_HOST_DEVICE constexpr Box box_at(const OperandTile& t, int slice, int box) {
  const int row = slice * box_rows(t);
  if (t.major == Major::kK) return {0, row, row * kSwizzleBytes};
  return {box * kChunkN, row, (box * kTileK + row) * kSwizzleBytes};
}

// ---- wgmma: byte offset in a stage of the 64-row (A) or n-column (B) block at `mn`, k16 step `step`
// -----------------------

HOPGEMM_HOST_DEVICE constexpr int mma_offset(Major major, int mn, int step) {
  if (major == Major::kK) return mn * kSwizzleBytes + step * kMmaK * 2;
  return mn / kChunkN * (kTileK * kSwizzleBytes) + step * kMmaK * kSwizzleBytes;
}

// ---- 128-byte swizzle
// -------------------------------------------------------------------------------------------------

// Byte offset of (row, byte) in a buffer of 128-byte rows that starts at a multiple of 1024: the 16-byte
// chunk is xored with the row's place in its atom. (PTX ISA, "Swizzling modes": 128B.)
HOPGEMM_HOST_DEVICE constexpr int swizzle128(int row, int byte) {
  return row * kSwizzleBytes + ((byte / 16 ^ (row & 7)) * 16) + byte % 16;
}

// ---- accumulator: m64nNk16's D fragment
// ---------------------------------------------------------------------------------

// Element `index` of thread `thread` (0..127) of the warpgroup. (PTX ISA, "wgmma D fragment".)
struct RowCol {
  int row, col;
};
HOPGEMM_HOST_DEVICE constexpr RowCol accumulator_at(int thread, int index) {
  const int warp = thread / kWarp, lane = thread % kWarp;
  return {warp * 16 + lane / 4 + (index / 2 % 2) * 8, index / 4 * 8 + lane % 4 * 2 + index % 2};
}

// stmatrix.x4 of 16-bit elements: lane `lane` of warp `warp` gives the address of one 16-byte row of four 8x8
// matrices (rows 0-7 and 8-15 of columns 0-7, then of 8-15) that hold accumulator elements 8 * pair .. 8 *
// pair + 7.
HOPGEMM_HOST_DEVICE constexpr int stmatrix_offset(int warp, int lane, int pair) {
  const int row = warp * 16 + lane % 16, col = pair * 16 + lane / 16 * 8;
  return swizzle128(row, col * 2);
}

// ---- exchange of partial sums (exchange.h)
// -----------------------------------------------------------------------------

// Which CTA of the split sums band `band` (16 rows of the tile, one warp's), and into which slot the CTA
// `source` of the split sends it. HAZARD: split is a power of two, at most kExchangeSlots.
HOPGEMM_HOST_DEVICE constexpr int bands_per_owner(int split) { return kExchangeSlots / split; }
HOPGEMM_HOST_DEVICE constexpr int band_owner(int band, int split) { return band / bands_per_owner(split); }
HOPGEMM_HOST_DEVICE constexpr int exchange_slot(int band, int source, int split) {
  return source * bands_per_owner(split) + band % bands_per_owner(split);
}
HOPGEMM_HOST_DEVICE constexpr int exchange_byte(int row, int col) { return col * kBandColumnBytes + row * 4; }

// What one thread sums and writes: half a column of a band, 8 rows. Neighbours share a column, so that a pair
// of threads fills a 32-byte sector of 16-bit results.
inline constexpr int kUnitRows = 8;
struct ExchangeUnit {
  int band, row, col;  // `row` in the band
};
HOPGEMM_HOST_DEVICE constexpr int exchange_units(const KernelConfig& c, int split) {
  return bands_per_owner(split) * c.tile_n * (kBandRows / kUnitRows);
}
HOPGEMM_HOST_DEVICE constexpr ExchangeUnit exchange_unit(const KernelConfig& c, int owner, int split,
                                                         int index) {
  const int half = index % 2, column = index / 2;
  return {owner * bands_per_owner(split) + column / c.tile_n, half * kUnitRows, column % c.tile_n};
}

// ---- staged fp32
// -------------------------------------------------------------------------------------------------------

// fp32: each thread stores two adjacent columns (8 bytes) of row `row`. Odd rows take the groups of 8 columns
// in exchanged order (g ^ 2), so that the 16 lanes of one pass touch all 32 banks.
HOPGEMM_HOST_DEVICE constexpr int fp32_group(int lane, int group) {
  return (lane / 4) & 1 ? group ^ 2 : group;
}
HOPGEMM_HOST_DEVICE constexpr int fp32_offset(int warp, int lane, int half, int group) {
  return swizzle128(warp * 16 + half * 8 + lane / 4, group * 32 + lane % 4 * 8);
}

}  // namespace hopgemm
