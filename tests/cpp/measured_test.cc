// Measured winners: which problem is answered by which entry, and what is left to the cost model. The table
// is made up, and stands in the shipped one's place.
#include <array>
#include <cstring>

#include "check.h"
#include "host/config_name.h"
#include "host/measured.h"

namespace hopgemm {
namespace {

using enum Major;
using enum MeasuredDTypes;
using enum MeasuredFor;
constexpr KernelConfig kSwap16{DType::kBF16, kK, kK, 128, 16, 1, 1, 11, Arrangement::kSwapped};
constexpr KernelConfig kSwap16Pair{DType::kBF16, kK, kK, 128, 16, 2, 1, 11, Arrangement::kSwapped};
constexpr KernelConfig kSmall{DType::kBF16, kK, kK, 64, 128, 1, 1, 8, Arrangement::kPingpong};
constexpr KernelConfig kLarge{DType::kBF16, kK, kK, 128, 256, 2, 1, 4, Arrangement::kCooperative};
constexpr KernelConfig kNotCompiled{DType::kBF16, kK, kK, 192, 128, 1, 1, 3, Arrangement::kPingpong};

constexpr std::array<Measured, 9> kTable{{
    {16, 1024, 256, kBoth, kAny, {kSwap16, {.split = 4}}},
    {700, 2048, 2048, kBoth, kAny, {kNotCompiled, {}}},
    {1, 4096, 4096, kBoth, kAny, {kSwap16, {.split = 4}}},
    {1, 4096, 4096, kBoth, kInvariant, {kSmall, {}}},
    {16, 4096, 4096, kBoth, kAny, {kSwap16Pair, {}}},
    {4096, 4096, 4096, kOnlyBF16, kAny, {kLarge, {.max_ctas = 120}}},
    {4096, 4096, 4096, kOnlyF16, kAny, {kLarge, {.group = 4}}},
    {16, 8192, 4096, kBoth, kAny, {kSwap16, {.split = 2}}},
    {16, 8200, 4096, kBoth, kAny, {kSwap16, {.split = 4}}},
}};
static_assert(is_table(kTable));

}  // namespace

std::span<const Measured> h200_table() { return kTable; }

namespace test {
namespace {

Problem kk(int64_t m, int64_t n, int64_t k, DType dtype = DType::kBF16) {
  auto at = [](uintptr_t place) { return reinterpret_cast<const void*>(place << 44); };
  Problem p;
  p.m = m, p.n = n, p.k = k;
  p.a = {at(1), dtype, k, 1, {}};
  p.b = {at(2), dtype, 1, k, {}};
  p.d = {at(4), dtype, n, 1, {}};
  return p;
}

Plan plan_of(const Problem& p, const DeviceFacts& facts = {}) {
  Plan plan;
  const Status s = make_plan(p, "", facts, plan);
  if (!CHECK(s.ok())) std::printf("  %s\n", s.message);
  return plan;
}

// `entry`: the sizes it was measured at, as the reason says them; "": the cost model spoke.
void check(const Problem& p, const char* entry, const char* config = "", const DeviceFacts& facts = {}) {
  const Plan plan = plan_of(p, facts);
  char reason[sizeof plan.reason] = "cost model: ";
  if (*entry) std::snprintf(reason, sizeof reason, "measured on an H200 SXM at %s", entry);
  const bool ok = *entry ? !std::strcmp(plan.reason, reason) && !std::strcmp(plan.config, config)
                         : !std::strncmp(plan.reason, reason, std::strlen(reason));
  if (!CHECK(ok)) std::printf("  %s, %s; not %s, %s\n", plan.reason, plan.config, reason, config);
}

constexpr const char* kAt1 = "1x4096x4096";
constexpr const char* kConfigAt1 = "bf16_kk_16x128x64_c1x1_s11_swap+split4";
constexpr const char* kAt16 = "16x4096x4096";
constexpr const char* kConfigAt16 = "bf16_kk_16x128x64_c1x2_s11_swap";
constexpr const char* kAt4096 = "4096x4096x4096";
constexpr const char* kConfigAt4096 = "bf16_kk_128x256x64_c2x1_s4_coop+ctas120";

void check_buckets() {
  check(kk(1, 4096, 4096), kAt1, kConfigAt1);
  check(kk(16, 4096, 4096), kAt16, kConfigAt16);
  check(kk(3, 4096, 4096), kAt1, kConfigAt1);  // 3 times 1, 16 / 5.3
  check(kk(5, 4096, 4096), kAt16, kConfigAt16);
  check(kk(17, 4096, 4096), "");  // a second tile of 16 rows
  check(kk(16, 4000, 4096), kAt16, kConfigAt16);
  check(kk(16, 3968, 4096), "");  // 31 tiles of 128 columns
  check(kk(16, 4104, 4096), "");  // 33
  check(kk(16, 4095, 4096), "");  // rows that are no multiple of 16 bytes
  check(kk(16, 4096, 4608), kAt16, kConfigAt16);
  check(kk(16, 4096, 3584), kAt16, kConfigAt16);
  check(kk(16, 4096, 4616), "");
  check(kk(16, 4096, 3576), "");
  check(kk(3969, 4096, 4096), kAt4096, kConfigAt4096);
  check(kk(3840, 4096, 4096), "");
  check(kk(4097, 4096, 4096), "");
  check(kk(16, 8192, 4096), "16x8192x4096", "bf16_kk_16x128x64_c1x1_s11_swap+split2");
  check(kk(16, 8200, 4096), "16x8200x4096", "bf16_kk_16x128x64_c1x1_s11_swap+split4");
  check(kk(16, 8208, 4096), "16x8200x4096", "bf16_kk_16x128x64_c1x1_s11_swap+split4");
}

void check_dtypes() {
  check(kk(1, 4096, 4096, DType::kF16), kAt1, "f16_kk_16x128x64_c1x1_s11_swap+split4");
  check(kk(4096, 4096, 4096, DType::kF16), kAt4096, "f16_kk_128x256x64_c2x1_s4_coop+m4");
}

// What was measured speaks for one product with a 16-bit result on an H200 SXM.
void check_other_problems() {
  DeviceFacts facts;
  facts.sm_count = 114;
  check(kk(16, 4096, 4096), "", "", facts);
  facts = {};
  std::strcpy(facts.name, "NVIDIA H200 NVL");
  check(kk(16, 4096, 4096), "", "", facts);
  Problem p = kk(16, 4096, 4096);
  p.d.dtype = DType::kF32;
  check(p, "");
  p = kk(16, 4096, 4096);
  p.batch_dims = 1, p.batch[0] = 2;
  p.a.batch_stride[0] = 16 * 4096, p.b.batch_stride[0] = 4096 * 4096, p.d.batch_stride[0] = 16 * 4096;
  check(p, "");
  p.b.batch_stride[0] = 0, p.m = p.batch[0] = 4;  // folds into M
  p.a.batch_stride[0] = p.d.batch_stride[0] = 4 * 4096;
  check(p, kAt16, kConfigAt16);
  p = kk(16, 4096, 4096);
  p.b.row_stride = 4096, p.b.col_stride = 1;  // kn
  check(p, "");
  p = kk(4096, 16, 4096);  // computed as the transposed product
  p.d.row_stride = 1, p.d.col_stride = 4096;
  CHECK(plan_of(p).swapped);
  check(p, kAt16, kConfigAt16);
}

// What a config asked for by name has to hold.
void check_validity() {
  check(kk(16, 1024, 256), "16x1024x256", "bf16_kk_16x128x64_c1x1_s11_swap+split4");
  check(kk(16, 1024, 192), "");  // 3 steps of K
  check(kk(700, 2048, 2048), "");
  Plan plan;
  DeviceFacts facts;
  facts.max_smem_bytes = smem_bytes(kSwap16Pair) - 1;
  CHECK(!make_plan(kk(16, 4096, 4096), "", facts, plan).ok() || !std::strstr(plan.reason, "measured"));
  for (const Measured& e : kTable) {  // a plan's config, asked for by name, is itself
    const Problem p = kk(e.m, e.n, e.k);
    const Plan chosen = plan_of(p);
    CHECK(make_plan(p, chosen.config, {}, plan).ok() && !std::strcmp(plan.config, chosen.config));
  }
}

void check_batch_invariant() {
  Problem p = kk(1, 4096, 4096);
  p.batch_invariant = true;
  check(p, kAt1, "bf16_kk_64x128x64_c1x1_s8_pingpong");
  p = kk(16, 4096, 4096);
  p.batch_invariant = true;
  check(p, kAt16, kConfigAt16);  // the winner does not split K
  p = kk(16, 8192, 4096);
  p.batch_invariant = true;
  check(p, "");  // it does
  CHECK(!std::strstr(plan_of(p).config, "+split"));
}

// A limit on SMs decides nothing about the bits.
void check_sm_limit() {
  Problem p = kk(1, 4096, 4096);
  for (int limit : {4, 66, 131, 132, 1000}) {
    p.sm_limit = limit;
    check(p, kAt1, kConfigAt1);
    CHECK(plan_of(p).grid <= limit);
  }
  p.sm_limit = 3;  // no cluster of 4
  CHECK(!std::strstr(plan_of(p).config, "+split"));
  p = kk(16, 4096, 4096);
  p.sm_limit = 66;
  check(p, "");
  CHECK(!std::strstr(plan_of(p).config, "+split"));
}

void check_tables() {
  std::array<Measured, 9> table = kTable;
  CHECK(is_table(table) && is_table({}));
  std::swap(table[0], table[1]);
  CHECK(!is_table(table));
  table = kTable, table[0].config.schedule.k_period = 8;
  CHECK(!is_table(table));
  table = kTable, table[3].config.schedule.split = 2;  // for batch-invariant problems
  CHECK(!is_table(table));
}

}  // namespace
}  // namespace test
}  // namespace hopgemm

int main() {
  using namespace hopgemm::test;
  check_buckets();
  check_dtypes();
  check_other_problems();
  check_validity();
  check_batch_invariant();
  check_sm_limit();
  check_tables();
  return report("measured_test");
}
