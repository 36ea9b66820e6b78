// The rungs of the ladder on the emulated machine, exact products under many schedules; broken twins of them,
// which must be caught; and the Hilbert order.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "check.h"
#include "emulator_case.h"
#include "ladder/emulated_rungs.h"
#include "ladder/hilbert.h"
#include "mutants.h"

namespace hopgemm::test {
namespace {

using ladder::EmulatedRung;

// One tile that the ring goes round in; and three rows of tiles by two columns, the last hanging over where
// the rung allows it, on fewer CTAs than tiles where the rung walks.
std::vector<Case> cases(const EmulatedRung& rung, DType dtype) {
  const KernelConfig& c = rung.config;
  std::vector<Case> all;
  for (const auto& [rows, columns, k_tiles] :
       {std::array{1, 1, 1}, std::array{1, 1, 2 * c.num_stages + 1}, std::array{3, 2, c.num_stages + 1}}) {
    Case x;
    x.m = rows * c.tile_m;
    x.n = columns * c.tile_n - (columns > 1 && rung.step_n < c.tile_n ? rung.step_n : 0);
    x.k = k_tiles * kTileK;
    x.out = dtype;
    x.schedule = rung.schedule;
    const int blocks = make_tile_grid({c, x.schedule}, x.m, x.n, x.k, 1, 1).num_blocks;
    x.num_ctas = (rung.persistent ? std::min(blocks, 2) : blocks) * cluster_size(c);
    all.push_back(x);
  }
  return all;
}

void check_rungs(int seeds) {
  for (const EmulatedRung& rung : ladder::kEmulatedRungs) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      KernelConfig config = rung.config;
      config.dtype = dtype;
      for (const Case& x : cases(rung, dtype)) {
        Product product(config, x, 1);
        for (int seed = 0; seed < seeds; ++seed) {
          const std::string failure = product.run(rung.run, seed);
          if (!CHECK(failure.empty()))
            std::printf("rung %s, %s, seed %d: %s\n", rung.name, x.describe().c_str(), seed, failure.c_str());
        }
      }
    }
  }
}

// Rung 2 with the next load ordered before the wgmma that reads the stage is done.
template <class Hw> class EarlyLoad : public Hw {
 public:
  using Hw::Hw;
  template <int kPending> void mma_wait(typename Hw::Accumulator& acc) {
    if (++steps_ % 3 == 0) Hw::template mma_wait<kPending>(acc);
  }

 private:
  int steps_ = 0;
};

template <class Roles, class Hw> void check_caught(const char* name) {
  const EmulatedRung rung = ladder::emulated_rung<Roles>(name);
  Product product(rung.config, cases(rung, rung.config.dtype).back(), 1);
  int caught = 0;
  constexpr int kSeeds = 4;
  for (int seed = 0; seed < kSeeds; ++seed)
    caught += !product.run(&ladder::emulate_rung<Roles, Hw>, seed).empty();
  if (!CHECK(caught == kSeeds)) std::printf("%s: caught %d of %d\n", name, caught, kSeeds);
}

template <class Roles> using Emulated = EmulatedHw<Roles::config(DType::kBF16)>;
template <class Roles, Mutant kMutant> void check_mutant(const char* name) {
  check_caught<Roles, MutantHw<Emulated<Roles>, kMutant>>(name);
}

void check_mutants() {
  using ladder::Rung02, ladder::Rung03, ladder::Rung04, ladder::Rung05, ladder::Rung07, ladder::Rung11;
  using Cluster = ladder::Rung09<256, 4>;
  using Staged = ladder::Rung10<256, 4>;
  check_caught<Rung02, EarlyLoad<Emulated<Rung02>>>("2, load before the wgmma is done");
  check_mutant<Rung03<2>, Mutant::kOneFullBarrier>("3a, one barrier for all stages");
  check_mutant<Rung04, Mutant::kPhaseResetPerTile>("4, phase reset for each tile");
  check_mutant<Rung05, Mutant::kNoRelease>("5, no release");
  check_mutant<Rung05, Mutant::kNoProxyFence>("5, no proxy fence");
  check_mutant<Rung07, Mutant::kReleaseBeforeWait>("7, release before the wait");
  check_mutant<Cluster, Mutant::kReleaseOwnCtaOnly>("9n, release to the own CTA only");
  check_mutant<Cluster, Mutant::kRingNotDrained>("9n, leaves before its peer is done");
  check_mutant<Staged, Mutant::kNoReadWait>("10n, staging overwritten");
  check_mutant<Rung11, Mutant::kTileSkipped>("11, tile skipped");
}

// Every cell once, and every step to a neighbour (a diagonal one where an odd side leaves no other way).
void check_hilbert() {
  for (int m = 1; m <= 40; ++m) {
    for (int n = 1; n <= 40; ++n) {
      std::vector<int> seen(m * n);
      int diagonal = 0;
      ladder::Cell last = ladder::hilbert_cell(m, n, 0);
      for (int i = 0; i < m * n; ++i) {
        const ladder::Cell cell = ladder::hilbert_cell(m, n, i);
        if (!CHECK(cell.m >= 0 && cell.m < m && cell.n >= 0 && cell.n < n)) return;
        ++seen[cell.m * n + cell.n];
        const int dm = std::abs(cell.m - last.m), dn = std::abs(cell.n - last.n);
        diagonal += dm == 1 && dn == 1;
        if (i > 0) CHECK(std::max(dm, dn) == 1);
        last = cell;
      }
      CHECK(std::count(seen.begin(), seen.end(), 1) == m * n);
      CHECK(diagonal <= 1);
    }
  }
}

// Panels of A and of B that a wave of `width` consecutive tiles of an 8x8 grid needs, on average over the
// waves.
template <class CellAt> double mean_panels(int width, CellAt&& at) {
  int panels = 0, waves = 0;
  for (int first = 0; first + width <= 64; ++first, ++waves) {
    bool row[8] = {}, column[8] = {};
    for (int i = first; i < first + width; ++i) row[at(i).m] = column[at(i).n] = true;
    panels += std::count(row, row + 8, true) + std::count(column, column + 8, true);
  }
  return static_cast<double>(panels) / waves;
}

// As the lecture counts them (docs/ladder.md).
void check_compact() {
  auto hilbert = [](int i) { return ladder::hilbert_cell(8, 8, i); };
  auto row = [](int i) { return ladder::Cell{i / 8, i % 8}; };
  CHECK(std::abs(mean_panels(8, row) - 9.86) < 0.005);
  CHECK(std::abs(mean_panels(8, hilbert) - 6.67) < 0.005);
}

}  // namespace
}  // namespace hopgemm::test

int main(int argc, char** argv) {
  using namespace hopgemm::test;
  check_rungs(argc > 1 ? std::atoi(argv[1]) : 4);
  check_mutants();
  check_hilbert();
  check_compact();
  return report("ladder_test");
}
