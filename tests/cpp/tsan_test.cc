// The second opinion: the same schedules, with the emulator's own vector clocks silent and ThreadSanitizer
// listening. It must say nothing of the kernel, and find the mutants that race. Reports of the mutants go to
// stderr too: only the counts matter.
//   tsan_test [SEEDS]
#include <cstdio>
#include <cstdlib>

#include "emulator_case.h"
#include "host/swap.h"
#include "mutants.h"

#ifndef __SANITIZE_THREAD__
#error "compile with -fsanitize=thread"
#endif

extern "C" const char* __tsan_default_options() {
  return "suppress_equal_stacks=0:suppress_equal_addresses=0:report_signal_unsafe=0:history_size=4:symbolize="
         "0";
}

namespace hopgemm::test {
namespace {

constexpr double kMustCatch = 0.9;  // it sees one interleaving, and remembers four accesses of a word
int failed = 0;

template <class Hw> void test(const char* name, int seeds, bool is_mutant) {
  constexpr KernelConfig kConfig = Hw::kKernelConfig;
  Case c;
  constexpr KernelConfig kCalled = as_called(kConfig);
  c.m = 2 * kCalled.tile_m * kCalled.cluster_m + 8, c.n = kCalled.tile_n + 24,
  c.k = (kConfig.num_stages + 2) * kTileK - 24;
  if (is_swapped(kConfig)) c.schedule.split = 2;
  else if (!is_mutant) c.schedule.tail = 2, c.schedule.ranges = 3;
  c.out = kConfig.dtype, c.num_ctas = 2 * cluster_size(kConfig, c.schedule.split);
  Product product(kConfig, c, 1);
  product.find_races = false;
  int raced = 0, failures = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const std::string failure = product.run(&emulate<Hw>, seed);
    raced += failure.find("ThreadSanitizer") != std::string::npos;
    failures += !failure.empty();
  }
  const bool ok = is_mutant ? raced >= kMustCatch * seeds : failures == 0;
  std::printf("%-44s %4d seeds, ThreadSanitizer reports %4d %s\n", name, seeds, raced, ok ? "ok" : "FAILED");
  std::fflush(stdout);
  failed += !ok;
}

constexpr KernelConfig kCoop{
    DType::kBF16, Major::kK, Major::kMN, 128, 128, 1, 1, 2, Arrangement::kCooperative};
constexpr KernelConfig kPing{DType::kF16, Major::kK, Major::kK, 64, 64, 1, 1, 3, Arrangement::kPingpong};
constexpr KernelConfig kCoopCluster{
    DType::kF16, Major::kMN, Major::kK, 128, 64, 1, 2, 3, Arrangement::kCooperative};
constexpr KernelConfig kPingCluster{DType::kBF16,          Major::kK, Major::kMN, 64, 64, 2, 1, 2,
                                    Arrangement::kPingpong};
constexpr KernelConfig kSwap{DType::kF16, Major::kMN, Major::kK, 128, 16, 1, 1, 2, Arrangement::kSwapped};
template <KernelConfig kConfig, Mutant kMutant> using Broken = MutantHw<EmulatedHw<kConfig>, kMutant>;

}  // namespace

int tsan_test(int seeds) {
  test<EmulatedHw<kCoop>>("cooperative", seeds, false);
  test<EmulatedHw<kPing>>("ping-pong", seeds, false);
  test<EmulatedHw<kCoopCluster>>("cooperative, cluster 1x2", seeds, false);
  test<EmulatedHw<kPingCluster>>("ping-pong, cluster 2x1", seeds, false);
  test<EmulatedHw<kSwap>>("swapped, K split in two", seeds, false);
  test<Broken<kSwap, Mutant::kSumsSentTooEarly>>("mutant: sums sent before the last were read", seeds, true);
  test<Broken<kCoop, Mutant::kReleaseBeforeWait>>("mutant: stage released before the wgmma wait", seeds,
                                                  true);
  test<Broken<kPing, Mutant::kNoWaitForOldGroup>>("mutant: stage released after one wgmma too few", seeds,
                                                  true);
  test<Broken<kCoop, Mutant::kNoReadWait>>("mutant: staging rewritten too early", seeds, true);
  test<Broken<kCoop, Mutant::kReadWaitTooWeak>>("mutant: staging rewritten one store too early", seeds, true);
  return failed != 0;
}

}  // namespace hopgemm::test

// Leaves at once: at an ordinary end ThreadSanitizer fails a program of which it has reported anything, here
// the mutants. Its exit code for that stays a failure, because it also ends with it when it breaks off.
int main(int argc, char** argv) { std::_Exit(hopgemm::test::tsan_test(argc > 1 ? std::atoi(argv[1]) : 50)); }
