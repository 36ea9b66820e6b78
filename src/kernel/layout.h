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
// K-major: rows of 64 K elements (128 bytes, swizzled), one after another; one box. MN-major: chunks 64 or 32
// wide, each tile_k swizzled rows; a box per chunk. Multicast shares: K-major along MN, MN-major along K.

struct OperandTile {
  int extent;  // along M or N
  Major major;
  int sharers;  // CTAs that each load one slice and multicast it
  int chunk;  // elements of a row
};
HOPGEMM_HOST_DEVICE constexpr OperandTile a_tile(const KernelConfig& c) {
  return {c.tile_m, c.a_major, c.cluster_n, kChunkN};
}
HOPGEMM_HOST_DEVICE constexpr OperandTile b_tile(const KernelConfig& c) {
  return {b_columns(c), c.b_major, c.cluster_m, b_chunk(c)};
}

HOPGEMM_HOST_DEVICE constexpr int num_boxes(const OperandTile& t) {  // in one slice
  return t.major == Major::kK ? 1 : t.extent / t.chunk;
}
HOPGEMM_HOST_DEVICE constexpr int row_bytes(const OperandTile& t) { return t.chunk * 2; }
HOPGEMM_HOST_DEVICE constexpr int box_rows(const OperandTile& t) {
  return (t.major == Major::kK ? t.extent : kTileK) / t.sharers;
}

// Box `box` of slice `slice`: element coordinates (unit-stride dimension first) relative to the tile's (mn,
// k) origin, and its byte offset in the stage.
struct Box {
  int inner, outer, offset_bytes;
};
HOPGEMM_HOST_DEVICE constexpr Box box_at(const OperandTile& t, int slice, int box) {
  const int row = slice * box_rows(t);
  if (t.major == Major::kK) return {0, row, row * row_bytes(t)};
  return {box * t.chunk, row, (box * kTileK + row) * row_bytes(t)};
}

// ---- wgmma: byte offset in a stage of the 64-row (A) or n-column (B) block at `mn`, k16 step `step`
// -----------------------

HOPGEMM_HOST_DEVICE constexpr int mma_offset(const OperandTile& t, int mn, int step) {
  if (t.major == Major::kK) return mn * row_bytes(t) + step * kMmaK * 2;
  return (mn / t.chunk * kTileK + step * kMmaK) * row_bytes(t);
}

// ---- swizzle
// -------------------------------------------------------------------------------------------------

// Where the byte that would lie at `address`, counted from a multiple of 1024, does lie in a buffer of rows
// of 128 or 64 bytes: 16-byte pieces of a row are xored with what stands 3 bits above. (PTX ISA, "Swizzling
// modes": 128B, 64B.)
HOPGEMM_HOST_DEVICE constexpr int swizzled(int address, int row_bytes) {
  return address ^ (address >> 3 & (row_bytes - 16));
}

// The same for (row, byte) in rows of 128 bytes. Bits of `byte` that the rest of it leaves clear may as well
// be xored with the result: the offsets below do, with pair and group < 4, which saves an addition each.
HOPGEMM_HOST_DEVICE constexpr int swizzle128(int row, int byte) {
  return swizzled(row * kSwizzleBytes + byte, kSwizzleBytes);
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

// Which of its thread's elements (row, col) is.
HOPGEMM_HOST_DEVICE constexpr int accumulator_index(int row, int col) {
  return col / 8 * 4 + row / 8 % 2 * 2 + col % 2;
}

// 8 columns of an accumulator, transposed (PtxHw::store_half): where the kRowsAtOnce rows of one column begin
// that thread `thread` has of them.
inline constexpr int kRowsAtOnce = 4;
HOPGEMM_HOST_DEVICE constexpr RowCol transposed_at(int thread) {
  const int warp = thread / kWarp, lane = thread % kWarp;
  return {warp * 16 + lane % 2 * 8 + lane / 2 % 2 * 4, lane / 4};
}

// stmatrix.x4 of 16-bit elements: lane `lane` of warp `warp` gives the address of one 16-byte row of four 8x8
// matrices (rows 0-7 and 8-15 of columns 0-7, then of 8-15) that hold accumulator elements 8 * pair .. 8 *
// pair + 7.
HOPGEMM_HOST_DEVICE constexpr int stmatrix_offset(int warp, int lane, int pair) {
  return swizzle128(warp * 16 + lane % 16, lane / 16 * 16) ^ pair * 32;
}

// ---- exchange of partial sums (exchange.h)
// -----------------------------------------------------------------------------

// A thread's sums, in the order of its accumulator, are `split` parts of one length; part i is summed by CTA
// i of the split, in the thread of the same place. HAZARD: split is a power of two.
HOPGEMM_HOST_DEVICE constexpr int part_length(const KernelConfig& c, int split) {
  return accumulator_registers(c) / split;
}
// The part that a thread's sum `index` is in.
HOPGEMM_HOST_DEVICE constexpr int part_of(const KernelConfig& c, int index, int split) {
  return index * split / accumulator_registers(c);  // a shift
}
HOPGEMM_HOST_DEVICE constexpr int vector_length(int part_length) { return part_length < 4 ? part_length : 4; }
HOPGEMM_HOST_DEVICE constexpr int part_bytes(const KernelConfig& c, int split) {  // of one consumer
  return part_length(c, split) * kWarpgroup * static_cast<int>(sizeof(float));
}
// Where consumer `consumer` finds its part from CTA `source`, and sum `index` of thread `thread` in it: what
// a warp sends at once lies in one piece.
HOPGEMM_HOST_DEVICE constexpr int part_offset(const KernelConfig& c, int split, int consumer, int source) {
  return result_offset(c) + (consumer * split + source) * part_bytes(c, split);
}
HOPGEMM_HOST_DEVICE constexpr int sum_byte(int part_length, int thread, int index) {
  const int vector = vector_length(part_length);
  return (index / vector * kWarpgroup + thread) * vector * 4 + index % vector * 4;
}

// ---- staged fp32
// -------------------------------------------------------------------------------------------------------

// fp32: each thread stores two adjacent columns (8 bytes) of row `row`. Odd rows take the groups of 8 columns
// in exchanged order (g ^ 2), so that the 16 lanes of one pass touch all 32 banks.
HOPGEMM_HOST_DEVICE constexpr int fp32_group(int lane, int group) {
  return (lane / 4) & 1 ? group ^ 2 : group;
}
HOPGEMM_HOST_DEVICE constexpr int fp32_offset(int warp, int lane, int half, int group) {
  return swizzle128(warp * 16 + half * 8 + lane / 4, lane % 4 * 8) ^ group * 32;
}

}  // namespace hopgemm
