// The maps of layout.h: bijections, free of bank conflicts, and one another's inverse where one writes what
// another reads.
#include <array>
#include <set>
#include <vector>

#include "check.h"
#include "kernel/layout.h"
#include "shipped.h"

namespace hopgemm::test {
namespace {

// `addresses`: where the lanes of one shared-memory pass begin, `bytes` each. All 32 banks, each once.
template <size_t kLanes> bool conflict_free(const std::array<int, kLanes>& addresses, int bytes) {
  std::set<int> banks;
  for (int address : addresses)
    for (int byte = 0; byte < bytes; byte += 4) banks.insert((address + byte) / 4 % 32);
  return banks.size() == kLanes * bytes / 4;
}

void check_swizzle() {
  std::set<int> seen;
  for (int row = 0; row < 64; ++row) {
    for (int byte = 0; byte < 128; ++byte) {
      const int at = swizzle128(row, byte);
      CHECK(at / 128 == row && at % 16 == byte % 16 && seen.insert(at).second);
      // The hardware xors address bits 4-6 with bits 7-9.
      const int plain = row * 128 + byte;
      CHECK(at == (plain ^ (plain >> 7 & 7) << 4));
    }
  }
  for (int plain = 0; plain < 8192; ++plain)  // rows of 64 bytes: bits 4 and 5 with bits 7 and 8
    CHECK(swizzled(plain, 64) == (plain ^ (plain >> 7 & 3) << 4));
  for (int chunk = 0; chunk < 8;
       ++chunk) {  // a column of 16-byte chunks: what wgmma and stmatrix take at once
    std::array<int, 8> column;
    for (int row = 0; row < 8; ++row) column[row] = swizzle128(row, chunk * 16);
    CHECK(conflict_free(column, 16));
  }
}

void check_accumulator() {
  for (int n = 64; n <= 256; n += 64) {
    std::set<std::pair<int, int>> seen;
    for (int thread = 0; thread < 128; ++thread) {
      for (int i = 0; i < n / 2; ++i) {
        const RowCol at = accumulator_at(thread, i);
        CHECK(at.row >= 0 && at.row < 64 && at.col >= 0 && at.col < n &&
              seen.insert({at.row, at.col}).second);
      }
    }
    CHECK(static_cast<int>(seen.size()) == 64 * n);
  }
}

// PtxHw::store_half, by its instructions. movmatrix.trans: a lane that held columns 2 (lane % 4) and the next
// of row lane / 4 has rows 2 (lane % 4) and the next of column lane / 4. Of the blocks of rows 0-7 and 8-15 a
// lane then gives the one that its neighbour keeps.
void check_transposed() {
  for (int thread = 0; thread < 128; ++thread) {
    const int warp = thread / 32, lane = thread % 32, odd = lane & 1;
    std::array<RowCol, 4> rows;
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int from = lane - odd + r / 2;  // the lane of the pair that the movmatrix gave these two rows
      rows[r] = {warp * 16 + odd * 8 + from % 4 * 2 + r % 2, lane / 4};
    }
    const RowCol at = transposed_at(thread);
    for (int r = 0; r < kRowsAtOnce; ++r) CHECK(rows[r].row == at.row + r && rows[r].col == at.col);
  }
}

// 16-bit results: matrix j of stmatrix.x4 takes its row r from lane 8 j + r's address, and that row's columns
// 2 c, 2 c + 1 from register j of lane 4 r + c.
void check_stmatrix() {
  std::set<int> seen;
  for (int warp = 0; warp < 4; ++warp) {
    for (int pair = 0; pair < 4; ++pair) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        std::array<int, 8> pass;
        for (int r = 0; r < 8; ++r) {
          pass[r] = stmatrix_offset(warp, matrix * 8 + r, pair);
          for (int c = 0; c < 8; ++c) {
            const RowCol at = accumulator_at(warp * 32 + r * 4 + c / 2, 8 * pair + 2 * matrix + c % 2);
            CHECK(pass[r] + c * 2 == swizzle128(at.row, at.col * 2));
            CHECK(seen.insert(pass[r] + c * 2).second);
          }
        }
        CHECK(conflict_free(pass, 16));
      }
    }
  }
  CHECK(static_cast<int>(seen.size()) == kStagingBytes / 2);
}

// fp32 results: 8 bytes a lane, a half warp a pass.
void check_fp32() {
  std::set<int> seen;
  for (int warp = 0; warp < 4; ++warp) {
    for (int group = 0; group < 4; ++group) {
      for (int half = 0; half < 2; ++half) {
        std::array<int, 16> pass;
        for (int lane = 0; lane < 32; ++lane) {
          const int own = fp32_group(lane, group), offset = fp32_offset(warp, lane, half, own);
          pass[lane % 16] = offset;
          if (lane % 16 == 15) CHECK(conflict_free(pass, 8));
          for (int i = 0; i < 2; ++i) {
            const RowCol at = accumulator_at(warp * 32 + lane, 4 * own + 2 * half + i);
            CHECK(offset + 4 * i == swizzle128(at.row, at.col * 4));
            CHECK(seen.insert(offset + 4 * i).second);
          }
        }
      }
    }
  }
  CHECK(static_cast<int>(seen.size()) == kStagingBytes / 4);
}

// The direct store reads a row, neighbouring lanes neighbouring elements.
void check_direct_store() {
  for (int row = 0; row < 64; ++row) {
    std::array<int, 32> words;
    for (int lane = 0; lane < 32; ++lane) words[lane] = swizzle128(row, lane * 4);
    CHECK(conflict_free(words, 4));
  }
}

// Where TMA puts element (mn, k) is where wgmma's descriptor looks for it.
void check_operand(const OperandTile& t) {
  std::vector<int> at(t.extent * kTileK, -1);  // plain address, before the swizzle, of each element
  for (int slice = 0; slice < t.sharers; ++slice) {
    for (int i = 0; i < num_boxes(t); ++i) {
      const Box box = box_at(t, slice, i);
      for (int row = 0; row < box_rows(t); ++row) {
        for (int x = 0; x < t.chunk; ++x) {
          const int inner = box.inner + x, outer = box.outer + row;
          const int mn = t.major == Major::kK ? outer : inner, k = t.major == Major::kK ? inner : outer;
          if (!CHECK(mn < t.extent && k < kTileK && at[mn * kTileK + k] == -1)) return;
          at[mn * kTileK + k] = box.offset_bytes + row * row_bytes(t) + x * 2;
        }
      }
    }
  }
  for (int mn = 0; mn < t.extent; ++mn) {
    for (int k = 0; k < kTileK; ++k) {
      const int i = mn % t.chunk, j = k % kMmaK, base = mma_offset(t, mn - i, k / kMmaK);
      // Descriptor: rows of K-major operands are 128 bytes apart; those of MN-major ones lie along K.
      const int address = t.major == Major::kK ? base + i * 128 + j * 2 : base + j * row_bytes(t) + i * 2;
      CHECK(at[mn * kTileK + k] == address);
    }
  }
}

}  // namespace
}  // namespace hopgemm::test

int main() {
  using namespace hopgemm::test;
  check_swizzle();
  check_accumulator();
  check_transposed();
  check_stmatrix();
  check_fp32();
  check_direct_store();
  for (const auto& c : possible_configs()) {
    check_operand(hopgemm::a_tile(c));
    check_operand(hopgemm::b_tile(c));
  }
  return report("layout_test");
}
