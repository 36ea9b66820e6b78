// The emulator's own rules: a seed decides everything, seeds differ, and a deadlock says who waits for what.
#include <cstring>
#include <set>

#include "check.h"
#include "emulator_case.h"
#include "mutants.h"
#include "shipped.h"

namespace hopgemm::test {
namespace {

constexpr KernelConfig kConfig{
    DType::kBF16, Major::kK, Major::kMN, 128, 64, 2, 1, 2, Arrangement::kCooperative};

Case small_case() {
  Case c;
  c.m = 300, c.n = 100, c.k = 5 * kTileK;
  c.out = kConfig.dtype, c.num_ctas = 2;
  return c;
}

std::string order_of(const std::vector<emulated::Event>& events) {
  std::string order;
  for (const emulated::Event& e : events)
    order += std::to_string(e.step) + " " + std::to_string(e.cta) + e.role + " " + e.what +
             std::to_string(e.where) + "\n";
  return order;
}

void check_replay() {
  Product product(kConfig, small_case(), 1);
  std::set<std::string> orders;
  constexpr int kSeeds = 20;
  for (int seed = 0; seed < kSeeds; ++seed) {
    std::vector<emulated::Event> first, again;
    CHECK(product.run(&emulate<EmulatedHw<kConfig>>, seed, &first).empty());
    CHECK(product.run(&emulate<EmulatedHw<kConfig>>, seed, &again).empty());
    CHECK(!first.empty() && order_of(first) == order_of(again));
    orders.insert(order_of(first));
  }
  CHECK(orders.size() == kSeeds);
}

void check_deadlock_report() {
  Product product(kConfig, small_case(), 1);
  const std::string failure = product.run(&emulate<MutantHw<EmulatedHw<kConfig>, Mutant::kNoRelease>>, 3);
  for (const char* part :
       {"deadlock", "CTA 0 producer [tile m 0 n 0", "k step 2]", "waits for empty[0] parity 0",
        "phase 0, 4 of 4 arrivals and 0 bytes pending", "CTA 1 consumer 1"})
    CHECK(failure.find(part) != std::string::npos);
}

// The exact oracle can fail: one wrong element is seen, wherever it is.
void check_oracle() {
  Product product(kConfig, small_case(), 1);
  const std::string failure = product.run(
      [](const emulated::Launch& launch) {
        emulated::Result result = emulate<EmulatedHw<kConfig>>(launch);
        const emulated::TensorMap& d = launch.params.d;
        char* const last = d.data + (d.size[1] - 1) * d.stride[1] + (d.size[0] - 1) * 2;
        *last = static_cast<char>(*last ^ 1);
        return result;
      },
      0);
  CHECK(failure == "wrong number at batch 0 row 299 column 99");
}

// A tile wider than one instruction.
void check_widest() {
  Case c = small_case();
  c.n = 640, c.k = 100, c.num_ctas = 1;
  Product product(kWidest, c, 1);
  for (int seed = 0; seed < 4; ++seed) CHECK(product.run(&emulate<EmulatedHw<kWidest>>, seed).empty());
}

void check_rounding() {
  using emulated::round_to;
  CHECK(round_to(DType::kBF16, 1.0f) == 0x3F80 && round_to(DType::kF16, 1.0f) == 0x3C00);
  CHECK(round_to(DType::kBF16, 257.0f) == 0x4380);  // 256 and 258 are as near: even
  CHECK(round_to(DType::kBF16, 259.0f) == 0x4382);
  CHECK(round_to(DType::kF16, 2049.0f) == 0x6800 && round_to(DType::kF16, 2051.0f) == 0x6802);
  for (DType t : {DType::kBF16, DType::kF16})
    for (int bits = 0; bits < 1 << 16; ++bits) {
      const float value = emulated::to_float(t, static_cast<uint16_t>(bits));
      if (value == value) CHECK(round_to(t, value) == bits);
    }
}

void check_clocks() {
  using emulated::Clock, emulated::History;
  History h;
  Clock reader(3);
  CHECK(h.write({0, 1}, reader).agent < 0);
  CHECK(h.read({1, 1}, reader).agent == 0);  // knows nothing of the write
  reader.join({0, 1});
  CHECK(h.read({1, 2}, reader).agent < 0);
  Clock writer(3);
  writer.join({0, 1});
  CHECK(h.write({2, 1}, writer).agent == 1);  // knows of the write, not of the read
}

}  // namespace
}  // namespace hopgemm::test

int main() {
  using namespace hopgemm::test;
  check_replay();
  check_deadlock_report();
  check_oracle();
  check_widest();
  check_rounding();
  check_clocks();
  return report("emulator_test");
}
