// Every protocol class (arrangement x cluster x depth of the ring x store) under many schedules: small tiles,
// shallow products, a fresh case every few seeds.
//   protocol_test [SEEDS]          all classes
//   protocol_test CLASS SEED       one run again, as a failure prints it
#include <cstdio>
#include <cstdlib>

#include "emulator_case.h"
#include "host/swap.h"

namespace hopgemm::test {
namespace {

constexpr int kSeedsPerCase = 8;

struct Class {
  std::string name;
  KernelConfig config;
  Kernel kernel;
  Store store;
};

Case random_case(const Class& x, uint64_t seed) {
  emulated::Random random(seed);
  const KernelConfig c = as_called(x.config);
  auto one_in = [&](int n) { return random.below(n) == 0; };
  // A multiple of the tile, or anything: one tile, odd counts, a rank of the cluster out of range.
  auto extent = [&](int tile, int most) {
    return one_in(3) ? tile * (1 + random.below(most)) : 1 + random.below(tile * most);
  };
  Case p;
  p.m = std::max(2, extent(c.tile_m, 1 + c.cluster_m)), p.n = extent(c.tile_n, 1 + c.cluster_n);
  p.k = extent(kTileK, one_in(4) ? 2 * c.num_stages + 1 : c.num_stages);
  p.batch = one_in(4) ? 2 : 1;
  if (p.batch > 1) p.share_a = one_in(2), p.share_b = !p.share_a && one_in(2);
  p.out = one_in(3) ? DType::kF32 : c.dtype;
  p.store = x.store;
  p.c = one_in(3), p.bias = one_in(3), p.alpha = one_in(3) ? -2.0f : 1.0f;
  p.schedule.along_m = one_in(2), p.schedule.group = 1 + random.below(3),
  p.schedule.k_period = random.below(3);
  if (is_swapped(c)) {
    const int k_tiles = (p.k + kTileK - 1) / kTileK;
    do p.schedule.split = 1 << random.below(3);
    while (!is_valid_split(c, p.schedule.split, k_tiles));
  }
  const int blocks = ceil_div(p.m, c.tile_m * c.cluster_m) * ceil_div(p.n, c.tile_n * c.cluster_n) * p.batch;
  if (!is_swapped(c) && one_in(3)) {
    p.schedule.tail = 1 + random.below(blocks);
    p.schedule.ranges = 1 + random.below(p.schedule.tail * ceil_div(p.k, kTileK));
  }
  p.num_ctas = cluster_size(c, p.schedule.split) * (1 + random.below(3));
  return p;
}

bool run(const Class& x, uint64_t first, int seeds) {
  int failures = 0;
  for (uint64_t seed = first; seed < first + seeds;) {
    const uint64_t number = seed / kSeedsPerCase;
    const Case c = random_case(x, number);
    Product product(x.config, c, number);
    for (; seed < first + seeds && seed / kSeedsPerCase == number; ++seed) {
      const std::string failure = product.run(x.kernel, seed);
      if (failure.empty() || failures++ > 0) continue;
      std::printf("%s\n  %s\n  again: protocol_test %s %llu\n", failure.c_str(), c.describe().c_str(),
                  x.name.c_str(), static_cast<unsigned long long>(seed));
    }
  }
  std::printf("%-40s %6d seeds %s\n", x.name.c_str(), seeds, failures ? "FAILED" : "ok");
  std::fflush(stdout);
  return failures == 0;
}

template <Arrangement kArrangement, int kClusterM, int kClusterN, int kStages, DType kDType, Major kA,
          Major kB>
void add(std::vector<Class>& classes) {
  constexpr bool kPingpong = kArrangement == Arrangement::kPingpong;
  constexpr bool kSwapped = kArrangement == Arrangement::kSwapped;
  // Two pieces of the result a consumer where the ring is short, one where it is long; of 112 columns the
  // second begins inside the first.
  constexpr int kTwoPieces = kB == Major::kK ? 112 : 96;  // N-major: chunks of 32
  constexpr int kTileN = kSwapped && kB == Major::kK ? 16 * kClusterM
                         : kStages == 2 && !kSwapped ? kTwoPieces
                                                     : 64;
  constexpr KernelConfig kConfig{kDType,    kA,        kB,      kPingpong ? 64 : 128, kTileN,
                                 kClusterM, kClusterN, kStages, kArrangement};
  for (Store store : {Store::kTma, Store::kDirect}) {
    const std::string name = std::string(kSwapped    ? "swap"
                                         : kPingpong ? "pingpong"
                                                     : "coop") +
                             "_c" + std::to_string(kClusterM) + "x" + std::to_string(kClusterN) + "_s" +
                             std::to_string(kStages) + (store == Store::kTma ? "_tma" : "_direct");
    classes.push_back({name, kConfig, &emulate<EmulatedHw<kConfig>>, store});
  }
}

// Types and majors change from class to class; all of them meet in instances_test.
std::vector<Class> all_classes() {
  constexpr auto kCoop = Arrangement::kCooperative, kPing = Arrangement::kPingpong,
                 kSwap = Arrangement::kSwapped;
  constexpr auto kB = DType::kBF16, kF = DType::kF16;
  constexpr auto kK = Major::kK, kMN = Major::kMN;
  std::vector<Class> x;
  add<kCoop, 1, 1, 2, kB, kK, kK>(x), add<kCoop, 1, 1, 5, kF, kMN, kK>(x);
  add<kCoop, 2, 1, 2, kF, kK, kMN>(x), add<kCoop, 2, 1, 5, kB, kK, kK>(x);
  add<kCoop, 1, 2, 2, kB, kMN, kMN>(x), add<kCoop, 1, 2, 5, kF, kK, kMN>(x);
  add<kCoop, 2, 2, 2, kF, kMN, kK>(x), add<kCoop, 2, 2, 5, kB, kMN, kMN>(x);
  add<kPing, 1, 1, 2, kB, kMN, kMN>(x), add<kPing, 1, 1, 5, kF, kK, kK>(x);
  add<kPing, 2, 1, 2, kF, kK, kK>(x), add<kPing, 2, 1, 5, kB, kMN, kMN>(x);
  add<kPing, 1, 2, 2, kB, kMN, kK>(x), add<kPing, 1, 2, 5, kF, kK, kMN>(x);
  add<kPing, 2, 2, 2, kF, kK, kMN>(x), add<kPing, 2, 2, 5, kB, kMN, kK>(x);
  add<kSwap, 1, 1, 2, kB, kK, kK>(x), add<kSwap, 1, 1, 5, kF, kMN, kMN>(x);
  add<kSwap, 2, 1, 2, kF, kMN, kK>(x), add<kSwap, 2, 1, 5, kB, kK, kMN>(x);
  return x;
}

}  // namespace

int protocol_test(int argc, char** argv) {
  bool ok = true;
  for (const Class& x : all_classes()) {
    if (argc == 3 && x.name != argv[1]) continue;
    ok &= argc == 3 ? run(x, std::strtoull(argv[2], nullptr, 10), 1)
                    : run(x, 0, argc > 1 ? std::atoi(argv[1]) : 1000);
  }
  return ok ? 0 : 1;
}

}  // namespace hopgemm::test

int main(int argc, char** argv) { return hopgemm::test::protocol_test(argc, argv); }
