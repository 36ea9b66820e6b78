// The numbers of every shipped config, recomputed from what they stand for.
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "check.h"
#include "kernel/layout.h"
#include "shipped.h"

namespace hopgemm::test {
namespace {

// What the producer of CTA `rank` sends, box by box: f(mask of receivers, offset in the stage of stage 0,
// bytes).
template <class F> void for_each_load(const KernelConfig& c, int rank, F f) {
  for (int i = 0; i < num_boxes(a_tile(c)); ++i)
    f(a_multicast_mask(c, rank), a_offset(c, 0) + box_at(a_tile(c), cluster_n_index(c, rank), i).offset_bytes,
      box_rows(a_tile(c)) * row_bytes(a_tile(c)));
  for (int i = 0; i < num_boxes(b_tile(c)); ++i)
    f(b_multicast_mask(c, rank), b_offset(c, 0) + box_at(b_tile(c), cluster_m_index(c, rank), i).offset_bytes,
      box_rows(b_tile(c)) * row_bytes(b_tile(c)));
}

// An MN-major B comes in chunks of 64 columns, or of 32 where these would be loaded in vain.
int loaded_columns(const KernelConfig& c) {
  if (c.b_major == Major::kK || c.tile_n % 64 == 0) return c.tile_n;
  const int chunk = c.tile_n < 192 ? 32 : 64;
  return (c.tile_n + chunk - 1) / chunk * chunk;
}

// Every byte of a stage arrives once, from whichever CTA, and the barrier waits for just so many.
void check_bytes(const KernelConfig& c) {
  for (int receiver = 0; receiver < cluster_size(c); ++receiver) {
    int bytes = 0;
    std::vector<int> arrivals(result_offset(c) / kAtomBytes);
    for (int sender = 0; sender < cluster_size(c); ++sender) {
      for_each_load(c, sender, [&](uint32_t mask, int offset, int size) {
        if (!(mask >> receiver & 1)) return;
        bytes += size;
        CHECK(offset % kAtomBytes == 0 && size % kAtomBytes == 0);
        for (int atom = offset / kAtomBytes; atom < (offset + size) / kAtomBytes; ++atom) ++arrivals[atom];
      });
    }
    CHECK(bytes == tx_bytes(c));
    CHECK(bytes == (c.tile_m + loaded_columns(c)) * 64 * 2);
    for (int atom = 0; atom < static_cast<int>(arrivals.size()); ++atom) {
      const int at = atom * kAtomBytes;
      const bool in_stage =
          (at >= a_offset(c, 0) && at < a_offset(c, 1)) || (at >= b_offset(c, 0) && at < b_offset(c, 1));
      CHECK(arrivals[atom] == (in_stage ? 1 : 0));
    }
  }
}

// `empty` hears from every consumer of every CTA that this CTA's loads reach, and from nobody else.
void check_arrivals(const KernelConfig& c) {
  for (int sender = 0; sender < cluster_size(c); ++sender) {
    uint32_t reached = 0;
    for_each_load(c, sender, [&](uint32_t mask, int, int) { reached |= mask; });
    int releases = 0;
    for (int rank = 0; rank < cluster_size(c); ++rank) {
      const bool releases_us = peer_mask(c, rank) >> sender & 1;
      CHECK(releases_us == (reached >> rank & 1));
      // Both consumers read a cooperative tile's stage, one of them a ping-pong tile's.
      if (releases_us) releases += c.arrangement == Arrangement::kPingpong ? 1 : 2;
    }
    CHECK(releases == empty_arrivals(c));
  }
  CHECK(full_arrivals(c) == 1 && turn_arrivals(c) == 1);
}

// Stages, staging and barriers lie side by side, aligned, within what a CTA may have.
void check_smem(const KernelConfig& c) {
  int end = 0;
  auto region = [&](int offset, int bytes, int alignment) {
    CHECK(offset == end && offset % alignment == 0);
    end = offset + bytes;
  };
  for (int s = 0; s < c.num_stages; ++s) region(a_offset(c, s), c.tile_m * 128, 1024);
  for (int s = 0; s < c.num_stages; ++s) region(b_offset(c, s), loaded_columns(c) * 128, 1024);
  if (is_swapped(c)) {
    region(result_offset(c), exchange_bytes(c), 1024);
  } else {
    for (int consumer = 0; consumer < 2; ++consumer)
      for (int slot = 0; slot < kStagingSlots; ++slot)
        region(staging_offset(c, consumer, slot), 64 * 128, 1024);
  }
  std::set<int> barriers;
  for (int s = 0; s < c.num_stages; ++s) barriers.insert({full_index(c, s), empty_index(c, s)});
  for (int i = 0; i < 2; ++i) barriers.insert(turn_index(c, i));
  barriers.insert({sums_full_index(c), sums_empty_index(c)});
  CHECK(static_cast<int>(barriers.size()) == num_barriers(c));
  for (int index : barriers) region(barrier_offset(c, index), 8, 8);
  CHECK(end + 1008 <= smem_bytes(c));  // the base may lie up to 1008 bytes past where the driver put it
  CHECK(smem_bytes(c) <= 227 * 1024);
}

void check_registers(const KernelConfig& c) {
  const int at_launch = 65536 / 384 / 8 * 8;  // registers of an SM, threads of a CTA, allocation unit
  CHECK(128 * (producer_registers(c) + 2 * consumer_registers(c)) <= 384 * at_launch);
  for (int registers : {producer_registers(c), consumer_registers(c)})
    CHECK(registers % 8 == 0 && registers >= 24 && registers <= 256);
  const int rows = c.arrangement == Arrangement::kPingpong ? c.tile_m : c.tile_m / 2;
  CHECK(accumulator_registers(c) == rows * c.tile_n / 128);
  CHECK(accumulator_registers(c) + 24 <= consumer_registers(c));
}

// The parts that the consumers of a CTA get, one from each CTA of the split, fill the exchange buffer; what a
// warp sends or reads at once is one piece of it.
void check_parts(const KernelConfig& c, int split) {
  std::set<int> bytes;
  const int length = part_length(c, split), vector = vector_length(length);
  for (int consumer = 0; consumer < 2; ++consumer) {
    for (int source = 0; source < split; ++source) {
      const int first = part_offset(c, split, consumer, source);
      CHECK(first % 1024 == 0 && part_bytes(c, split) % 1024 == 0);
      for (int thread = 0; thread < 128; ++thread) {
        for (int i = 0; i < length; ++i) {
          bytes.insert(first + sum_byte(length, thread, i));
          CHECK(sum_byte(length, thread, i) == sum_byte(length, 0, i) + thread * vector * 4);
        }
        for (int i = 0; i < length; i += vector) CHECK(sum_byte(length, thread, i) % (4 * vector) == 0);
      }
    }
  }
  CHECK(static_cast<int>(bytes.size()) * 4 == exchange_bytes(c) && *bytes.begin() == result_offset(c) &&
        *bytes.rbegin() + 4 == result_offset(c) + exchange_bytes(c));
  CHECK(sums_tx_bytes(c, split) == 2 * (split - 1) * part_bytes(c, split));
}

// Each element of the tile has one owner, the CTA that has it in its part, whichever way it leaves: by
// itself, or transposed, a few rows at once.
void check_owners(const KernelConfig& c, int split) {
  std::map<std::pair<int, int>, int> owners;
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < c.tile_n / 2; ++i) {
      const RowCol at = accumulator_at(thread, i);
      CHECK(accumulator_index(at.row, at.col) == i);
      CHECK(part_of(c, i, split) == i / part_length(c, split));
      owners[{at.row, at.col}] = i / part_length(c, split);
    }
  }
  CHECK(static_cast<int>(owners.size()) == 64 * c.tile_n);
  std::set<std::pair<int, int>> leave;
  for (int thread = 0; thread < 128; ++thread) {
    for (int column = 0; column < c.tile_n; column += 8) {
      const RowCol at = transposed_at(thread);
      for (int r = 0; r < kRowsAtOnce; ++r) {
        leave.insert({at.row + r, column + at.col});
        const int owner = owners[{at.row + r, column + at.col}];
        CHECK(owner == part_of(c, accumulator_index(at.row, column + at.col), split));
      }
    }
  }
  CHECK(leave.size() == owners.size());
}

void check_exchange(const KernelConfig& c) {
  if (!is_swapped(c)) return;
  for (int split = 1; split <= kMaxSplit; split *= 2) {
    CHECK(cluster_size(c, split) <= kMaxClusterSize);
    if (split > 1) check_parts(c, split);
    check_owners(c, split);
  }
}

void check_instructions(const KernelConfig& c) {
  CHECK(is_valid(c));
  int columns = 0;
  for (int n = first_mma_n(c.tile_n); columns < c.tile_n; columns += n, n = c.tile_n - columns)
    CHECK(n % 16 == 0 && n <= 256 && columns % kChunkN == 0);
  CHECK(columns == c.tile_n);
  CHECK(box_rows(a_tile(c)) <= 256 && box_rows(b_tile(c)) <= 256);
}

}  // namespace
}  // namespace hopgemm::test

int main() {
  using namespace hopgemm::test;
  for (const auto& c : possible_configs()) {
    check_bytes(c);
    check_arrivals(c);
    check_smem(c);
    check_registers(c);
    check_exchange(c);
    check_instructions(c);
  }
  return report("config_test");
}
