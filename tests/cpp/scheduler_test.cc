// The tile order: every tile once for every number of SMs and launches, and a K direction that coordinates
// alone decide.
#include <map>
#include <tuple>
#include <vector>

#include "check.h"
#include "host/tail.h"
#include "scheduler/tile_scheduler.h"

namespace hopgemm::test {
namespace {

constexpr int kMaxSms = 160;

bool same(const KSteps& x, const KSteps& y) {
  return x.first == y.first && x.count == y.count && x.step == y.step;
}

// What the clusters of a pool do, launch after launch.
template <KernelConfig kConfig, class Visit>
void walk(const TileGrid& grid, int waves, int clusters, int rank, Visit&& visit) {
  const Launches launches(grid, waves, clusters);
  for (int i = 0; i < launches.count(); ++i) {
    const TileGrid launch = launches.grid(i);
    for (int cluster = 0; cluster < launches.clusters(i); ++cluster) {
      int items = 0;  // whole ones
      for (TileScheduler<kConfig> tiles(launch, cluster, clusters, rank); tiles.valid(); tiles.next()) {
        visit(tiles);
        items += tiles.piece().part < 0;
      }
      CHECK(waves == 0 || items <= waves);
    }
  }
  const int each = waves * clusters;
  CHECK(launches.count() == (waves == 0 ? 1 : (num_items(grid) + each - 1) / each));
}

template <int kClusterM, int kClusterN> struct Walk {
  static constexpr KernelConfig kConfig{
      DType::kBF16, Major::kK, Major::kK, 64, 128, kClusterM, kClusterN, 2, Arrangement::kPingpong};
  static constexpr int kSize = kClusterM * kClusterN;

  // How often each tile (of one CTA) is visited, and whether its K runs backwards.
  static void check_grid(const TileGrid& grid) {
    using Place = std::tuple<int, int, int, int>;
    std::map<Place, bool> direction;
    for (int sms = 1; sms <= kMaxSms; ++sms) {
      const int clusters = std::max(1, std::min(sms / kSize, grid.num_blocks));
      const int rows = grid.m_blocks * kClusterM, cols = grid.n_blocks * kClusterN;
      std::vector<int> visits(rows * cols * grid.batch_inner * grid.batch_outer);
      for (int rank = 0; rank < kSize; ++rank)
        walk<kConfig>(grid, sms % 4, clusters, rank, [&](const TileScheduler<kConfig>& tiles) {
          const Tile t = tiles.tile();
          const int m = t.m / 64, n = t.n / 128;
          if (!CHECK(t.m == m * 64 && t.n == n * 128 && m >= 0 && m < rows && n >= 0 && n < cols &&
                     t.batch_inner >= 0 && t.batch_inner < grid.batch_inner && t.batch_outer >= 0 &&
                     t.batch_outer < grid.batch_outer))
            return;
          ++visits[((t.batch_outer * grid.batch_inner + t.batch_inner) * rows + m) * cols + n];
          const bool is_reversed = t.k.step < 0;
          CHECK(same(t.k, is_reversed ? KSteps{2, 3, -1} : KSteps{0, 3, 1}));
          const auto [seen, is_new] = direction.insert({{m, n, t.batch_inner, t.batch_outer}, is_reversed});
          CHECK(is_new || seen->second == is_reversed);
          CHECK(grid.k_period > 0 || !is_reversed);
        });
      bool once = true;
      for (int v : visits) once &= v == 1;
      CHECK(once);
    }
  }

  static void check_all() {
    constexpr int kSizes[][4] = {{1, 1, 1, 1}, {1, 7, 1, 1}, {5, 1, 2, 1},  {3, 5, 1, 2},
                                 {9, 4, 1, 1}, {4, 9, 2, 2}, {13, 11, 1, 1}};
    for (const auto& [m_blocks, n_blocks, inner, outer] : kSizes)
      for (bool along_m : {true, false})
        for (int group : {1, 2, 3, 8, 100})
          for (int k_period : {0, 1, 3, 8}) {
            const Schedule s{.along_m = along_m, .group = group, .k_period = k_period};
            // One element past the last full tile, so that rounding up is needed.
            const int64_t m = int64_t{64} * kClusterM * m_blocks - 63,
                          n = int64_t{128} * kClusterN * n_blocks - 127;
            const TileGrid grid = make_tile_grid({kConfig, s}, m, n, 3 * 64, inner, outer);
            CHECK(grid.m_blocks == m_blocks && grid.n_blocks == n_blocks &&
                  grid.num_blocks == m_blocks * n_blocks * inner * outer);
            check_grid(grid);
          }
  }
};

// Every step of K of every tile once, whatever the tail, its ranges and the pool; parts of a tile have
// numbers of their own, in the order of K, and are those that are added up for it.
void check_tails() {
  constexpr KernelConfig kConfig{DType::kBF16,          Major::kK, Major::kK, 64, 128, 1, 1, 2,
                                 Arrangement::kPingpong};
  int dealt = 0, end_to_end = 0;  // tails whose tiles have as many ranges
  for (int k_tiles : {1, 2, 7, 30, 256, 257, 320})
    for (int tail : {1, 2, 5, 12})
      for (int ranges : {1, 2, 3, 4, 5, 8, 11, 12, 13, 20, 25, 48, 50, 360}) {
        if (ranges > tail * k_tiles) continue;
        const Schedule s{.group = 2, .k_period = k_tiles % 2, .tail = tail, .ranges = ranges};
        const TileGrid grid = make_tile_grid({kConfig, s}, 64 * 4, 128 * 3, 64 * k_tiles, 1, 1);
        CHECK(is_valid_tail(kConfig, s, grid.num_blocks, k_tiles) && grid.ranges <= ranges);
        const int shares = ranges % tail == 0 ? ranges / tail : 1;
        const bool are_long =
            (k_tiles >= 256 && k_tiles != 257 && shares == 4) || (k_tiles == 320 && shares == 5);
        CHECK(grid.k_step == (are_long ? 1 : shares));
        if (shares > 1) ++(are_long ? end_to_end : dealt);
        for (int pool : {1, 2, 5, 132}) {
          std::map<int, int> visits;  // of step k of block b, by b * k_tiles + k
          std::map<int, Piece> parts;
          walk<kConfig>(grid, ranges % 3, pool, 0, [&](const TileScheduler<kConfig>& tiles) {
            const Piece p = tiles.piece();
            CHECK(p.k.count > 0 && (p.part >= 0) == (p.block >= grid.whole));
            const KSteps k = tiles.tile().k;  // the same steps, perhaps backwards
            CHECK(k.count == p.k.count && (same(k, p.k) || same(reversed(k), p.k)));
            CHECK(same(k, block_at(grid, p.block).k_reversed ? reversed(p.k) : p.k));
            for (int i = 0; i < k.count; ++i) ++visits[p.block * k_tiles + k.first + i * k.step];
            if (p.part >= 0) CHECK(parts.insert({p.part, p}).second);
          });
          CHECK(static_cast<int>(visits.size()) == grid.num_blocks * k_tiles);
          for (const auto& [step, times] : visits) CHECK(times == 1);
          CHECK(parts.begin()->first >= 0 && parts.rbegin()->first < num_parts(grid));
          for (int i = 0; i < tail; ++i) {
            const Parts sums = parts_of(grid, i);
            int steps = 0;
            for (int part = sums.first; part < sums.first + sums.count; ++part) {
              CHECK(parts[part].block == grid.whole + i && (grid.k_step > 1 || parts[part].k.first == steps));
              steps += parts[part].k.count;
            }
            CHECK(steps == k_tiles &&
                  first_of_group(sums.count, add_groups(grid), add_groups(grid)) == sums.count);
          }
        }
      }
  CHECK(dealt >= 50 && end_to_end == 10);
  // Read along K by neither operand; long, but few.
  for (Major b : {Major::kK, Major::kMN})
    for (int tail : {1, 2}) {
      const KernelConfig c{DType::kBF16, Major::kMN, b, 64, 128, 1, 1, 2, Arrangement::kPingpong};
      const TileGrid grid = make_tile_grid({c, {.tail = tail, .ranges = 8}}, 64, 256, 64 * 2048, 1, 1);
      CHECK(grid.k_step == (b == Major::kK ? 1 : 8 / tail));
    }
}

// The CTAs of a split have each step of K once between them, forwards or backwards.
void check_splits() {
  constexpr KernelConfig kConfig{DType::kBF16, Major::kK, Major::kK, 128, 16, 1, 1, 2, Arrangement::kSwapped};
  for (int k_tiles : {8, 9, 15, 64})
    for (int split : {1, 2, 4})
      for (int k_period : {0, 1}) {
        const Schedule s{.k_period = k_period, .split = split};
        const TileGrid grid = make_tile_grid({kConfig, s}, 128 * 3, 16 * 2, 64 * k_tiles, 1, 1);
        std::map<int, int> visits;  // of step k of block b, by b * k_tiles + k
        for (int rank = 0; rank < split; ++rank)
          for (TileScheduler<kConfig> tiles(grid, 0, 1, rank); tiles.valid(); tiles.next()) {
            const KSteps k = tiles.tile().k, share = tiles.piece().k;
            const bool is_reversed = block_at(grid, tiles.piece().block).k_reversed;
            CHECK(share.first == rank && share.step == split &&
                  same(k, is_reversed ? reversed(share) : share));
            for (int i = 0; i < k.count; ++i) ++visits[tiles.piece().block * k_tiles + k.first + i * k.step];
          }
        CHECK(static_cast<int>(visits.size()) == grid.num_blocks * k_tiles);
        for (const auto& [step, times] : visits) CHECK(times == 1);
      }
}

// Quotients and rests: of small numbers all, of large ones around multiples, of powers of two and their
// neighbours as of numbers between.
void check_divisors() {
  for (int d = 1; d <= 300; ++d)
    for (int n = 0; n <= 2000; ++n) CHECK(n / Divisor(d) == n / d && n % Divisor(d) == n % d);
  std::vector<int64_t> divisors{INT32_MAX - 1, INT32_MAX};
  for (int64_t d = 1; d < INT32_MAX; d = d * 9 / 8 + 1) divisors.push_back(d);
  for (int64_t d = 2; d < INT32_MAX; d *= 2) divisors.insert(divisors.end(), {d - 1, d, d + 1});
  for (int64_t d : divisors)
    for (int64_t q : {int64_t{1}, int64_t{2}, int64_t{1000}, INT32_MAX / d / 2, INT32_MAX / d})
      for (int64_t n : {q * d - 1, q * d, q * d + 1, int64_t{INT32_MAX}})
        if (n >= 0 && n <= INT32_MAX) {
          const int x = static_cast<int>(n), y = static_cast<int>(d);
          CHECK(x / Divisor(y) == x / y && x % Divisor(y) == x % y);
        }
}

// A strip is `group` wide, its neighbour runs back, and K turns every k_period steps: the order itself, once
// by hand.
void check_order() {
  constexpr KernelConfig kConfig{DType::kBF16,          Major::kK, Major::kK, 64, 128, 1, 1, 2,
                                 Arrangement::kPingpong};
  const TileGrid grid = make_tile_grid({kConfig, {.group = 2}}, 64 * 3, 128 * 3, 64, 1, 1);
  constexpr int kExpected[][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {2, 2}, {1, 2}, {0, 2}};
  for (int i = 0; i < 9; ++i)
    CHECK(block_at(grid, i).m == kExpected[i][0] && block_at(grid, i).n == kExpected[i][1]);
  const TileGrid turning = make_tile_grid({kConfig, {.group = 2, .k_period = 2}}, 64 * 4, 128 * 2, 64, 1, 1);
  for (int i = 0; i < 8; ++i) CHECK(block_at(turning, i).k_reversed == (i >= 4));
}

}  // namespace
}  // namespace hopgemm::test

int main() {
  using namespace hopgemm::test;
  check_divisors();
  check_order();
  check_tails();
  check_splits();
  Walk<1, 1>::check_all();
  Walk<2, 1>::check_all();
  Walk<1, 2>::check_all();
  Walk<2, 2>::check_all();
  return report("scheduler_test");
}
