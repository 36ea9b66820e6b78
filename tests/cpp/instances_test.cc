// Every kernel of instances.def at its real tile size: the cases that a shape can get wrong.
//   instances_test [NAME]
#include <cstdio>
#include <cstring>

#include "bindings/emulate.h"
#include "config/instances.h"
#include "emulator_case.h"
#include "host/swap.h"

namespace hopgemm::test {
namespace {

struct Named {
  const char* name;
  Case c;
};

std::vector<Named> cases(const KernelConfig& config) {
  const KernelConfig c = as_called(config);
  const int m = c.tile_m * c.cluster_m, n = c.tile_n * c.cluster_n, size = cluster_size(c);
  const DType other = c.dtype == DType::kBF16 ? DType::kF32 : c.dtype;
  std::vector<Named> all;
  auto add = [&](const char* name) -> Case& {
    Case x;
    x.m = c.tile_m, x.n = c.tile_n, x.k = kTileK, x.out = c.dtype, x.num_ctas = size;
    all.push_back({name, x});
    return all.back().c;
  };
  add("one element").m = 1, all.back().c.n = 1, all.back().c.k = 1;
  add("one tile, K over the ring").k = (c.num_stages + 1) * kTileK + 8;
  Case& tails = add("tails, one SM, K shorter than the ring");
  tails.m = m + c.tile_m / 2 + 3, tails.n = n + 17, tails.k = kTileK + 9, tails.out = DType::kF32,
  tails.num_ctas = size;
  Case& many = add("odd tiles, more than CTAs, K reversed, bias");
  many.m = 3 * m - 5, many.n = c.tile_n, many.k = 2 * kTileK, many.num_ctas = 2 * size;
  many.schedule.group = 2, many.schedule.k_period = 1, many.bias = true;
  Case& batches = add("batches that share B, C");
  batches.batch = 3, batches.share_b = true, batches.c = true, batches.alpha = -1,
  batches.num_ctas = 2 * size;
  batches.out = other;
  Case& direct = add("direct store, along N");
  direct.m = m / 2 + 1, direct.n = n + 7, direct.k = 70, direct.store = Store::kDirect;
  direct.schedule.along_m = false, direct.schedule.group = 1, direct.num_ctas = 2 * size;
  if (!is_swapped(c)) {
    Case& tail = add("a tail in ranges that end inside its tiles, after whole ones; C and bias");
    tail.m = 2 * m + 3, tail.n = n + 9, tail.k = 4 * kTileK + 5, tail.c = tail.bias = true;
    tail.schedule.tail = 3, tail.schedule.ranges = 4, tail.num_ctas = 2 * size;
    Case& many = add("everything is tail, with more parts a tile than one thread adds; batches");
    many.m = c.tile_m - 3, many.k = 11 * kTileK, many.batch = 2, many.out = other;
    many.schedule.tail = 2, many.schedule.ranges = 22, many.num_ctas = size;
    Case& long_ranges = add("ranges of several tiles, one SM");
    long_ranges.m = 3 * m, long_ranges.k = 2 * kTileK, long_ranges.n = n + 3,
    long_ranges.store = Store::kDirect;
    long_ranges.schedule.tail = 5, long_ranges.schedule.ranges = 2, long_ranges.num_ctas = size;
  } else {
    Case& split = add("K split in four, two tiles each, C and bias");
    split.m = c.tile_m + 3, split.n = 3 * n - 9, split.k = (kMaxSplit + 1) * kTileK + 9,
    split.c = split.bias = true;
    split.schedule.split = kMaxSplit, split.num_ctas = kMaxSplit * size;
    Case& pair = add("K split in two, fp32, ragged columns");
    pair.m = c.tile_m, pair.n = n + 5, pair.k = 5 * kTileK, pair.out = DType::kF32,
    pair.store = Store::kDirect;
    pair.schedule.split = 2, pair.num_ctas = 2 * size;
  }
  return all;
}

bool run(const Instance& instance, uint64_t seed) {
  bool ok = true;
  const auto kernel = reinterpret_cast<Kernel>(const_cast<void*>(instance.kernel()));
  int runs = 0;
  for (const Named& x : cases(instance.config)) {
    Product product(instance.config, x.c, seed);
    const std::string failure = product.run(kernel, seed++);
    ++runs;
    if (failure.empty()) continue;
    ok = false;
    std::printf("%s: %s: %s\n  %s\n", instance.name, x.name, failure.c_str(), x.c.describe().c_str());
  }
  std::printf("%-40s %6d runs %s\n", instance.name, runs, ok ? "ok" : "FAILED");
  return ok;
}

}  // namespace

int instances_test(int argc, char** argv) {
  bool ok = true;
  int found = 0;
  for (int i = 0; i < kNumInstances; ++i) {
    if (argc > 1 && std::strcmp(kInstances[i].name, argv[1]) != 0) continue;
    ++found;
    ok &= run(kInstances[i], static_cast<uint64_t>(i) * 100);
  }
  return ok && found ? 0 : 1;
}

}  // namespace hopgemm::test

int main(int argc, char** argv) { return hopgemm::test::instances_test(argc, argv); }
