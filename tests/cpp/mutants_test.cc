// Runs every mutant beside its clean twin, the same case and seeds, and prints what was caught and how.
//   mutants_test [SEEDS]
#include "mutants.h"

#include <cstdio>
#include <cstdlib>
#include <map>

#include "emulator_case.h"
#include "host/swap.h"

namespace hopgemm::test {
namespace {

constexpr double kMustCatch = 0.99;

// K runs over the ring several times, tiles over the CTAs, and both dimensions have tails.
template <KernelConfig kConfig> Case hard_case() {
  constexpr KernelConfig kCalled = as_called(kConfig);
  Case c;
  c.m = 2 * kCalled.tile_m * kCalled.cluster_m + 8, c.n = 2 * kCalled.tile_n + 27;  // a ragged end
  c.k = (2 * kConfig.num_stages + 1) * kTileK - 24;
  c.out = kConfig.dtype;
  if (is_swapped(kConfig) && kConfig.tile_n == 16) c.schedule.split = 4 / kConfig.cluster_m;
  c.num_ctas = 2 * cluster_size(kConfig, c.schedule.split);
  return c;
}

// What a message says, without the numbers of this run.
std::string kind_of(const std::string& failure) {
  for (const char* kind :
       {"deadlock", "race", "an arrival too many", "which it has had", "has missed phase",
        "middle of a phase", "in the middle of phase", "does not know", "is stored twice", "wrong number",
        "cannot know that it is initialized", "overwrites the barrier", "outside the shared memory",
        "copies cannot see", "which has left", "before its wgmma", "bytes pending", "launches before"})
    if (failure.find(kind) != std::string::npos) return kind;
  return failure;
}

int failed = 0;

std::string percent(int part, int whole) {
  char text[16];
  std::snprintf(text, sizeof text, "%.1f%%", 100.0 * part / whole);
  return text;
}

template <KernelConfig kConfig, Mutant kMutant> void test(const char* name, int seeds) {
  const Case c = hard_case<kConfig>();
  Product product(kConfig, c, static_cast<uint64_t>(kMutant));
  std::map<std::string, int> how;
  int caught = 0, false_alarms = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    if (const std::string failure = product.run(&emulate<MutantHw<EmulatedHw<kConfig>, kMutant>>, seed);
        !failure.empty()) {
      ++caught;
      ++how[kind_of(failure)];
    }
    if (const std::string failure = product.run(&emulate<EmulatedHw<kConfig>>, seed); !failure.empty()) {
      if (!false_alarms++)
        std::fprintf(stderr, "clean twin of %s, seed %d: %s\n", name, seed, failure.c_str());
    }
  }
  std::string list;
  for (const auto& [kind, count] : how)
    list += (list.empty() ? "" : ", ") + kind + " " + std::to_string(count);
  const bool ok = caught >= kMustCatch * seeds && false_alarms == 0;
  std::printf("| %s | %d | %s | %d | %s |%s\n", name, seeds, percent(caught, seeds).c_str(), false_alarms,
              list.c_str(), ok ? "" : " FAILED");
  std::fflush(stdout);
  failed += !ok;
}

constexpr KernelConfig kCoop{
    DType::kBF16, Major::kK, Major::kMN, 128, 128, 1, 1, 3, Arrangement::kCooperative};
constexpr KernelConfig kPing{DType::kF16, Major::kK, Major::kK, 64, 64, 1, 1, 3, Arrangement::kPingpong};
constexpr KernelConfig kCoopCluster{
    DType::kF16, Major::kK, Major::kK, 128, 64, 2, 1, 3, Arrangement::kCooperative};
constexpr KernelConfig kPingCluster{DType::kBF16,          Major::kK, Major::kMN, 64, 64, 2, 1, 3,
                                    Arrangement::kPingpong};

constexpr KernelConfig kSwap{DType::kBF16, Major::kK, Major::kK, 128, 16, 1, 1, 3, Arrangement::kSwapped};

constexpr KernelConfig kSwapWhole{DType::kBF16,         Major::kK, Major::kK, 128, 32, 1, 1, 3,
                                  Arrangement::kSwapped};
constexpr KernelConfig kSwapCluster{DType::kF16, Major::kMN,           Major::kK, 128, 16, 2, 1,
                                    3,           Arrangement::kSwapped};

void test_all(int seeds) {
  std::printf("| mutant | seeds | caught | false alarms of the clean twin | how |\n|---|---|---|---|---|\n");
#define HOPGEMM_MUTANT(config, mutant) test<config, Mutant::mutant>(#mutant " (" #config ")", seeds)
  HOPGEMM_MUTANT(kCoop, kTxTooMany);
  HOPGEMM_MUTANT(kCoop, kTxTooFew);
  HOPGEMM_MUTANT(kPing, kTxOncePerWarp);
  HOPGEMM_MUTANT(kCoop, kTxTailClipped);
  HOPGEMM_MUTANT(kCoop, kWrongStartPhase);
  HOPGEMM_MUTANT(kCoop, kPhaseNotFlipped);
  HOPGEMM_MUTANT(kPing, kPhaseNotFlipped);
  HOPGEMM_MUTANT(kCoop, kPhaseFlippedTwice);
  HOPGEMM_MUTANT(kCoop, kPhaseResetPerTile);
  HOPGEMM_MUTANT(kCoop, kOneFullBarrier);
  HOPGEMM_MUTANT(kCoop, kReleaseBeforeWait);
  HOPGEMM_MUTANT(kPing, kReleaseBeforeWait);
  HOPGEMM_MUTANT(kCoopCluster, kReleaseBeforeWait);
  HOPGEMM_MUTANT(kCoop, kNoRelease);
  HOPGEMM_MUTANT(kCoop, kNoReleaseOnLastStep);
  HOPGEMM_MUTANT(kPing, kNoReleaseOnLastStep);
  HOPGEMM_MUTANT(kPing, kReleaseTwice);
  HOPGEMM_MUTANT(kCoopCluster, kReleaseOwnCtaOnly);
  HOPGEMM_MUTANT(kPing, kNoFullWait);
  HOPGEMM_MUTANT(kCoop, kArrivalsTooMany);
  HOPGEMM_MUTANT(kCoop, kArrivalsTooFew);
  HOPGEMM_MUTANT(kPingCluster, kArrivalsTooFew);
  HOPGEMM_MUTANT(kCoopCluster, kNoStartSync);
  HOPGEMM_MUTANT(kPingCluster, kRingNotDrained);
  HOPGEMM_MUTANT(kCoop, kNoInitFence);
  HOPGEMM_MUTANT(kPing, kNoLaunchWaitByProducer);
  HOPGEMM_MUTANT(kCoop, kNoLaunchWaitByConsumers);
  HOPGEMM_MUTANT(kSwap, kNoLaunchWaitByConsumers);
  HOPGEMM_MUTANT(kCoop, kNoDrain);
  HOPGEMM_MUTANT(kCoop, kNoProxyFence);
  HOPGEMM_MUTANT(kCoop, kFenceAfterSync);
  HOPGEMM_MUTANT(kCoop, kNoReadWait);
  HOPGEMM_MUTANT(kCoop, kReadWaitTooWeak);
  HOPGEMM_MUTANT(kCoop, kRaggedEndByTma);
  HOPGEMM_MUTANT(kCoop, kBarrierInStage);
  HOPGEMM_MUTANT(kPing, kTurnIgnored);
  HOPGEMM_MUTANT(kPing, kTurnStartsWrong);
  HOPGEMM_MUTANT(kCoop, kTileTwice);
  HOPGEMM_MUTANT(kPing, kTileSkipped);
  HOPGEMM_MUTANT(kCoopCluster, kMulticastOwnCtaOnly);
  HOPGEMM_MUTANT(kPingCluster, kSliceOfAnother);
  HOPGEMM_MUTANT(kCoop, kAccumulatorTooEarly);
  HOPGEMM_MUTANT(kCoop, kNoWaitForOldGroup);
  HOPGEMM_MUTANT(kCoop, kStageOfAnother);
  HOPGEMM_MUTANT(kSwap, kReleaseBeforeWait);
  HOPGEMM_MUTANT(kSwapCluster, kReleaseOwnCtaOnly);
  HOPGEMM_MUTANT(kSwapCluster, kMulticastOwnCtaOnly);
  HOPGEMM_MUTANT(kSwapCluster, kSumsSentTooEarly);
  HOPGEMM_MUTANT(kSwap, kAccumulatorTooEarly);
  HOPGEMM_MUTANT(kSwap, kNoStartSync);
  HOPGEMM_MUTANT(kSwapCluster, kRingNotDrained);
  HOPGEMM_MUTANT(kSwap, kLastReadersNotAwaited);
  HOPGEMM_MUTANT(kSwap, kSumsSentTooEarly);
  HOPGEMM_MUTANT(kSwap, kSumsReadTooEarly);
  HOPGEMM_MUTANT(kSwap, kSumsReleasedBeforeRead);
  HOPGEMM_MUTANT(kSwap, kSumsReleasedHereOnly);
  HOPGEMM_MUTANT(kSwap, kSumsNotShared);
  HOPGEMM_MUTANT(kSwap, kSumsNotAnnounced);
  HOPGEMM_MUTANT(kSwap, kSumsNotAdded);
  HOPGEMM_MUTANT(kSwapWhole, kNoLaunchWaitByConsumers);
  HOPGEMM_MUTANT(kSwapWhole, kAccumulatorTooEarly);
#undef HOPGEMM_MUTANT
}

}  // namespace
}  // namespace hopgemm::test

int main(int argc, char** argv) {
  hopgemm::test::test_all(argc > 1 ? std::atoi(argv[1]) : 300);
  return hopgemm::test::failed != 0;
}
