// What a kernel is (KernelConfig, a template argument), how it walks (Schedule, a kernel parameter), and
// every number that follows from the two. Kernel, host, emulator and tests call these functions; nobody
// recomputes one. Not here: which config to take for a shape (host/select), which are compiled
// (instances.def).
#pragma once
#include <cstdint>

#include "api/gemm.h"

namespace hopgemm {

constexpr int ceil_div(int64_t x, int64_t y) { return static_cast<int>((x + y - 1) / y); }

enum class Major : uint8_t { kK, kMN };  // the dimension with unit stride
enum class Arrangement : uint8_t {
  kCooperative,  // both consumers share one tile, half of its rows each
  kPingpong,     // each consumer has a tile of its own: one's epilogue runs under the other's math
  kSwapped,  // cooperative, for d' = b' a': the small side of a product is wgmma's N. A cluster may split K
};

inline constexpr int kTileK = 64;  // one 128-byte swizzle row of 16-bit elements
inline constexpr int kWarp = 32, kWarpgroup = 128;  // threads
inline constexpr int kWarpsPerGroup = kWarpgroup / kWarp;
inline constexpr int kNumConsumers = 2;  // warpgroups; a third one is the producer
inline constexpr int kNumThreads = (kNumConsumers + 1) * kWarpgroup;
inline constexpr int kProducerWarp = kNumConsumers * kWarpsPerGroup;  // the first of its warpgroup
inline constexpr int kMmaM = 64, kMmaK = 16;  // wgmma's fixed sizes
inline constexpr int kSwizzleBytes = 128;  // a row of the swizzle atom; 8 rows are an atom
inline constexpr int kAtomBytes = 8 * kSwizzleBytes;
inline constexpr int kChunkN = kSwizzleBytes / 2;  // an MN-major operand lies in chunks this wide, or half
inline constexpr int kStagingBytes = kMmaM * kSwizzleBytes;  // a piece of the result on its way out: 64 rows
inline constexpr int kStagingSlots = 2;  // per consumer: fill one while TMA reads the other
inline constexpr int kMaxTmaBox = 256;  // elements in one box dimension
inline constexpr int kMaxSplit = 4;  // CTAs that share a tile of a swapped kernel
inline constexpr int kMaxClusterSize = 8;  // what every device takes

// `a` is the operand that wgmma reads 64 rows at a time, `b` the other one, d is tile_m x tile_n: in a
// swapped kernel a is the caller's B, and the result's rows are the caller's columns (host/swap.h).
struct KernelConfig {
  DType dtype;
  Major a_major, b_major;
  int tile_m, tile_n;
  int cluster_m, cluster_n;
  int num_stages;
  Arrangement arrangement;
};

// L2 policy of a TMA access, as `createpolicy` would encode it (the constants CUTLASS and DeepGEMM pass too).
enum class CachePolicy : uint64_t {
  kNormal = 0x1000000000000000,
  kEvictFirst = 0x12F0000000000000,
  kEvictLast = 0x14F0000000000000,
};

// The walk over the tiles. Strips `group` cluster tiles wide run along the raster axis, to and fro; every
// `k_period` steps of the walk the K direction turns (0: never), so that a superblock of group x k_period
// tiles meets in L2 what the last one left there (docs/design.md, tile order).
struct Schedule {
  bool along_m = true;  // a strip is `group` tiles of N wide and walks along M; else the other way round
  int group = 8;
  int k_period = 0;
  int max_ctas = 0;  // 0: as many as the device holds
  int split = 1;  // CTAs that each sum a part of K and add up within their cluster; swapped kernels only
  int tail =
      0;  // the last tiles of the walk (of a cluster), whose K is cut into `ranges` that are added up in
  int ranges = 0;  // memory (tile_scheduler.h, host/tail.h); not for swapped kernels
  int waves = 0;  // of tiles that one launch takes (tile_scheduler.h); 0: all of them
  CachePolicy a_policy = CachePolicy::kNormal, b_policy = CachePolicy::kNormal,
              d_policy = CachePolicy::kNormal;
  bool operator==(const Schedule&) const = default;
};

struct Config {
  KernelConfig kernel;
  Schedule schedule;
};

// Does K lie in several parts for some element, so that its sum depends on the config?
constexpr bool parts_k(const Schedule& s) { return s.split > 1 || s.tail > 0; }

constexpr bool operator==(const KernelConfig& x, const KernelConfig& y) {
  return x.dtype == y.dtype && x.a_major == y.a_major && x.b_major == y.b_major && x.tile_m == y.tile_m &&
         x.tile_n == y.tile_n && x.cluster_m == y.cluster_m && x.cluster_n == y.cluster_n &&
         x.num_stages == y.num_stages && x.arrangement == y.arrangement;
}

constexpr bool is_swapped(const KernelConfig& c) { return c.arrangement == Arrangement::kSwapped; }
constexpr bool is_cooperative(const KernelConfig& c) { return c.arrangement != Arrangement::kPingpong; }
constexpr int cluster_size(const KernelConfig& c, int split = 1) { return c.cluster_m * c.cluster_n * split; }
constexpr int split_index(const KernelConfig& c, int rank) {
  return is_swapped(c) ? rank / cluster_size(c) : 0;  // the others never split
}
// Has a CTA others in its cluster, which it reaches into? Only a swapped kernel does not know when it is
// compiled.
constexpr bool may_have_peers(const KernelConfig& c) { return cluster_size(c) > 1 || is_swapped(c); }
constexpr bool has_peers(const KernelConfig& c, int split) {
  return cluster_size(c) > 1 || (is_swapped(c) && split > 1);
}
constexpr int consumer_m(const KernelConfig& c) {
  return is_cooperative(c) ? c.tile_m / kNumConsumers : c.tile_m;
}
constexpr int mma_rows(const KernelConfig& c) { return consumer_m(c) / kMmaM; }  // wgmmas stacked along M

// A wgmma is at most 256 wide and starts at a multiple of 64: 320 columns are issued as 192 + 128.
constexpr int first_mma_n(int tile_n) { return tile_n <= 256 ? tile_n : 192; }

constexpr int a_stage_bytes(const KernelConfig& c) { return c.tile_m * kTileK * 2; }
// How wide the chunks of an MN-major B are: half as wide where that loads fewer columns in vain. (Not 224, of
// which they would be seven: more copies a step than the producer has registers for. K-major: the 64 elements
// of a row.)
constexpr int b_chunk(const KernelConfig& c) {
  const int rest = c.tile_n % kChunkN;
  const bool saves = rest > 0 && rest <= kChunkN / 2 && c.tile_n <= 192;
  return c.b_major == Major::kMN && saves ? kChunkN / 2 : kChunkN;
}
// Columns that are loaded: an MN-major operand comes in whole chunks.
constexpr int b_columns(const KernelConfig& c) {
  return c.b_major == Major::kK ? c.tile_n : ceil_div(c.tile_n, b_chunk(c)) * b_chunk(c);
}
constexpr int b_stage_bytes(const KernelConfig& c) { return b_columns(c) * kTileK * 2; }

// What a `full` barrier waits for: the whole stage, whichever CTA of the cluster sends it.
constexpr int tx_bytes(const KernelConfig& c) { return a_stage_bytes(c) + b_stage_bytes(c); }

// An `empty` barrier hears from each consumer of the tile in every CTA that this CTA's loads reach: its
// cluster row (sharing A) and its cluster column (sharing B), itself counted once.
constexpr int full_arrivals(const KernelConfig&) { return 1; }
constexpr int empty_arrivals(const KernelConfig& c) {
  return (is_cooperative(c) ? kNumConsumers : 1) * (c.cluster_m + c.cluster_n - 1);
}
constexpr int turn_arrivals(const KernelConfig&) { return 1; }
// The parts that a CTA sums come from every other CTA of the split, and their bytes are announced. They are
// free again when both consumers of every owner have read.
constexpr int sums_full_arrivals(const KernelConfig&) { return 1; }
constexpr int sums_empty_arrivals(const KernelConfig&, int split) { return kNumConsumers * split; }

// Where the partial sums of a swapped kernel meet: room for one part of the tile from every CTA of the split
// (kernel/exchange.h).
constexpr int exchange_bytes(const KernelConfig& c) {
  return c.tile_m * c.tile_n * static_cast<int>(sizeof(float));
}
// What a `sums_full` barrier waits for: the parts of the others. Not by a division, for which a GPU takes as
// long as for the exchange.
static_assert(kMaxSplit == 4);
constexpr int sums_tx_bytes(const KernelConfig& c, int split) {
  return split == 2 ? exchange_bytes(c) / 2 : exchange_bytes(c) / 4 * 3;
}

// Shared memory, in bytes from a 1024-byte aligned base: A stages, B stages, the result on its way out
// (staging, or exchange), barriers (in no TMA destination).
constexpr int a_offset(const KernelConfig& c, int stage) { return stage * a_stage_bytes(c); }
constexpr int b_offset(const KernelConfig& c, int stage) {
  return c.num_stages * a_stage_bytes(c) + stage * b_stage_bytes(c);
}
constexpr int result_offset(const KernelConfig& c) { return b_offset(c, c.num_stages); }
constexpr int result_bytes(const KernelConfig& c) {
  return is_swapped(c) ? exchange_bytes(c) : kNumConsumers * kStagingSlots * kStagingBytes;
}
constexpr int staging_offset(const KernelConfig& c, int consumer, int slot) {
  return result_offset(c) + (consumer * kStagingSlots + slot) * kStagingBytes;
}
constexpr int barrier_offset(const KernelConfig& c, int index) {
  return result_offset(c) + result_bytes(c) + index * 8;
}
constexpr int full_index(const KernelConfig&, int stage) { return stage; }
constexpr int empty_index(const KernelConfig& c, int stage) { return c.num_stages + stage; }
constexpr int turn_index(const KernelConfig& c, int consumer) { return 2 * c.num_stages + consumer; }
constexpr int sums_full_index(const KernelConfig& c) { return turn_index(c, kNumConsumers); }
constexpr int sums_empty_index(const KernelConfig& c) { return sums_full_index(c) + 1; }
constexpr int num_barriers(const KernelConfig& c) { return sums_empty_index(c) + 1; }
constexpr int smem_bytes(const KernelConfig& c) {
  return barrier_offset(c, num_barriers(c)) +
         kAtomBytes;  // the base is aligned by hand: up to 1008 bytes are lost
}

// Registers per thread that setmaxnreg leaves each role. 65536 / 384 threads rounds down to 168 at launch, so
// 128 * (producer + 2 * consumer) may not pass 384 * 168: a larger claim never returns.
inline constexpr int kLaunchRegisters = 168;
constexpr int accumulator_registers(const KernelConfig& c) { return mma_rows(c) * c.tile_n / 2; }
// A cooperative consumer also holds the last tile's rounded result (epilogue.h), half as many registers
// again. Of the ping-pong ones 128x64 spills with 224, and no producer of theirs needs more than 40.
constexpr int consumer_registers(const KernelConfig& c) {
  if (is_swapped(c)) return 208;  // small accumulators
  return is_cooperative(c) || accumulator_registers(c) > 128 ? 240 : 232;
}
constexpr int producer_registers(const KernelConfig& c) {
  return kNumThreads * kLaunchRegisters / kWarpgroup - kNumConsumers * consumer_registers(c);
}

inline constexpr int kMaxSmemBytes = 232448;  // what compute capability 9.0 gives one CTA

// May this config be compiled? One predicate for instances.def, the selector and the tests.
constexpr bool is_valid(const KernelConfig& c) {
  const bool cluster =
      (c.cluster_m == 1 || c.cluster_m == 2) && (c.cluster_n == 1 || (c.cluster_n == 2 && !is_swapped(c)));
  const bool narrow = is_swapped(c) && c.b_major == Major::kK && (c.tile_n == 16 || c.tile_n == 32);
  const bool columns = narrow || (c.tile_n >= 64 && c.tile_n % (is_swapped(c) ? 64 : 16) == 0);
  const bool tile = consumer_m(c) % kMmaM == 0 && mma_rows(c) >= 1 && columns && c.tile_n <= 320 &&
                    c.tile_m / c.cluster_n <= kMaxTmaBox;
  const bool sides =
      !is_swapped(c) || (consumer_m(c) == kMmaM && c.tile_n <= 128 && c.tile_n % (8 * c.cluster_m) == 0);
  const bool b_box = c.b_major == Major::kMN || c.tile_n / c.cluster_m <= kMaxTmaBox;
  return c.dtype != DType::kF32 && cluster && tile && sides && b_box && accumulator_registers(c) <= 192 &&
         c.num_stages >= 2 && smem_bytes(c) <= kMaxSmemBytes;
}

// The split must leave every CTA of it a step of K, and a cluster that every device takes.
constexpr bool is_valid_split(const KernelConfig& c, int split, int64_t k_tiles) {
  if (split == 1) return true;
  const bool power_of_two = split > 0 && (split & (split - 1)) == 0;
  return is_swapped(c) && power_of_two && split <= kMaxSplit && split <= k_tiles &&
         cluster_size(c, split) <= kMaxClusterSize;
}

}  // namespace hopgemm
