// Layouts, refusals and plans, case by case: what each rule of api/gemm.h says of one small problem.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "check.h"
#include "host/config_name.h"
#include "host/normal_form.h"
#include "host/select.h"
#include "host/swap.h"

namespace hopgemm::test {
namespace {

const void* at(int place, int64_t bytes = 0) {  // addresses far from each other
  return reinterpret_cast<const void*>((static_cast<uintptr_t>(place) << 44) + bytes);
}
Problem row_major(int64_t m, int64_t n, int64_t k) {
  Problem p;
  p.m = m, p.n = n, p.k = k;
  p.a = {at(1), DType::kBF16, k, 1, {}};
  p.b = {at(2), DType::kBF16, n, 1, {}};
  p.d = {at(4), DType::kBF16, n, 1, {}};
  return p;
}
Problem with_c(Problem p, const Matrix& c) {
  p.c = c, p.beta = 1;
  return p;
}

Plan plan_of(const Problem& p, const char* config = "", const DeviceFacts& facts = {}) {
  Plan plan;
  const Status s = make_plan(p, config, facts, plan);
  if (!CHECK(s.ok())) std::printf("  %s\n", s.message);
  return plan;
}
void check_status(const Status& s, Code code, std::initializer_list<const char*> words) {
  CHECK(s.code == code && std::strlen(s.message) < sizeof s.message - 1);
  for (const char* word : words)
    if (!CHECK(std::strstr(s.message, word))) std::printf("  no '%s' in: %s\n", word, s.message);
}
// Refused, with a message that holds the argument, the value and the rule.
void refuse(const Problem& p, std::initializer_list<const char*> words, const char* config = "") {
  Plan plan;
  check_status(make_plan(p, config, DeviceFacts{}, plan), Code::kInvalidArgument, words);
}

// ---- operands ---------------------------------------------------------------------------------------------

void check_layout(const Problem& p, const char* majors, bool pack_a, bool pack_b) {
  const Plan plan = plan_of(p);
  CHECK(plan.path == Path::kGemm && plan.pack_a == pack_a && plan.pack_b == pack_b);
  if (!CHECK(!std::strcmp(plan.majors, majors))) std::printf("  %s, not %s\n", plan.majors, majors);
  CHECK((plan.workspace_bytes > 0) == (pack_a || pack_b) && plan.workspace_bytes % 256 == 0);
}

void check_majors() {
  Problem p = row_major(24, 40, 16);
  check_layout(p, "kn", false, false);
  p.b.row_stride = 1, p.b.col_stride = 16;
  check_layout(p, "kk", false, false);
  p.a.row_stride = 1, p.a.col_stride = 24;
  check_layout(p, "mk", false, false);
  p.b.row_stride = 40, p.b.col_stride = 1;
  check_layout(p, "mn", false, false);
  p.a.col_stride = 32, p.b.row_stride = 48;  // padded
  check_layout(p, "mn", false, false);
}

void check_packing() {
  const Problem p = row_major(24, 40, 16);
  auto check_a = [&](int64_t row, int64_t col, int64_t bytes, bool pack) {
    Problem q = p;
    q.a = {at(1, bytes), DType::kBF16, row, col, {}};
    check_layout(q, "kn", pack, false);
  };
  check_a(24, 1, 0, false);
  check_a(17, 1, 0, true);   // odd leading dimension
  check_a(20, 1, 0, true);   // a multiple of 8 bytes alone
  check_a(16, 1, 2, true);   // odd base
  check_a(16, 1, 8, true);
  check_a(16, 1, 16, false);
  check_a(-16, 1, 0, true);  // backwards
  check_a(16, -1, 1024, true);
  check_a(0, 1, 0, true);    // one row for all
  check_a(1, 0, 0, true);
  check_a(8, 1, 0, true);    // overlapping rows
  check_a(32, 2, 0, true);   // no unit stride
  Problem q = p;
  q.a.row_stride = 17, q.b.row_stride = 41;
  CHECK(plan_of(q).workspace_bytes == 24 * 16 * 2 + 40 * 16 * 2);
  q = row_major(24, 40, 17);  // padded K: 24 elements a row
  CHECK(plan_of(q).pack_a && plan_of(q).workspace_bytes == (24 * 24 * 2 + 255) / 256 * 256);
}

// The stride of a dimension of size 1 says nothing.
void check_ones() {
  for (int64_t stride : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{-5}, int64_t{1} << 60}) {
    Problem p = row_major(1, 40, 16);
    p.a.row_stride = p.d.row_stride = stride;
    check_layout(p, "kn", false, false);
    p = row_major(24, 1, 16);
    p.b = {at(2), DType::kBF16, 1, stride, {}}, p.d.row_stride = 1, p.d.col_stride = stride;
    check_layout(p, "kk", false, false);
    p = row_major(24, 40, 1);
    p.a = {at(1), DType::kBF16, 1, stride, {}}, p.b.row_stride = stride;
    check_layout(p, "mn", false, false);
    p = row_major(24, 40, 16);
    p.batch_dims = 1, p.batch[0] = 1;
    p.a.batch_stride[0] = p.b.batch_stride[0] = p.d.batch_stride[0] = stride;
    check_layout(p, "kn", false, false);
  }
}

// ---- results ----------------------------------------------------------------------------------------------

void check_store() {
  auto columns = [](const Problem& p) {
    NormalProblem q;
    CHECK(normalize(p, q).ok());
    CHECK((plan_of(p).store == Store::kTma) == (q.epilogue.tma_columns >= 128 / size_of(p.d.dtype)));
    return q.epilogue.tma_columns;
  };
  Problem p = row_major(24, 40, 16);
  CHECK(columns(p) == INT32_MAX);
  p.d.row_stride = 44;  // rows of 88 bytes
  CHECK(columns(p) == 0);
  p.d.row_stride = 48, p.d.data = at(4, 8);
  CHECK(columns(p) == 0);
  p.d.dtype = DType::kF32, p.d.row_stride = 44, p.d.data = at(4, 16);
  CHECK(columns(p) == INT32_MAX);
  p = row_major(24, 42, 16);  // ends inside 16 bytes
  p.d.row_stride = 48;
  CHECK(columns(p) == 42);
  p = row_major(1, 40, 16);
  p.d.col_stride = 3;  // a column to the kernel, of 6-byte steps
  CHECK(columns(p) == 0 && plan_of(p).swapped);
  p = row_major(24, 40, 16);
  p.d.row_stride = 1, p.d.col_stride = 24;
  CHECK(columns(p) == INT32_MAX && plan_of(p).swapped && !std::strcmp(plan_of(p).majors, "mk"));
  p.d.col_stride = 48, p.d.row_stride = 2;
  refuse(p, {"out", "(2, 48)", "one of them must be 1"});
}

void check_paths() {
  for (int zero = 0; zero < 3; ++zero) {
    Problem p = row_major(zero == 0 ? 0 : 8, zero == 1 ? 0 : 8, 8);
    if (zero == 2) p.batch_dims = 1;
    CHECK(plan_of(p).path == Path::kEmpty && plan_of(p).workspace_bytes == 0);
  }
  Problem p = row_major(8, 8, 0);
  p.a.data = p.b.data = nullptr;
  CHECK(plan_of(p).path == Path::kFill);
  p = with_c(row_major(8, 8, 8), {at(3), DType::kBF16, 8, 1, {}});
  p.a.data = p.d.data, p.alpha = 0;  // never read, so it may be out itself
  CHECK(plan_of(p).path == Path::kFill);
  p.alpha = -0.0f;
  CHECK(plan_of(p).path == Path::kFill);
  p.alpha = NAN;
  refuse(p, {"out overlaps a"});
  p = row_major(8, 8, 8);
  p.c = {at(4, 2), DType::kBF16, 8, 1, {}};  // across out, but beta is 0
  NormalProblem q;
  CHECK(normalize(p, q).ok() && !q.epilogue.c.data && !q.epilogue.scaled);
}

void check_overlap() {
  const Problem p = row_major(16, 8, 8);
  auto check_c = [&](const Matrix& c, bool ok) {
    Plan plan;
    const Status s = make_plan(with_c(p, c), "", DeviceFacts{}, plan);
    if (ok) CHECK(s.ok());
    else check_status(s, Code::kInvalidArgument, {"out overlaps c", "copy of c"});
  };
  check_c(p.d, true);                                      // in place
  check_c({p.d.data, DType::kF32, 8, 1, {}}, false);       // another type
  check_c({p.d.data, DType::kBF16, 1, 16, {}}, false);     // transposed
  check_c({at(4, 16), DType::kBF16, 8, 1, {}}, false);     // shifted by a row
  check_c({at(4, 16 * 8 * 2), DType::kBF16, 8, 1, {}}, true);   // right behind
  check_c({at(4, 15 * 8 * 2), DType::kBF16, 8, 1, {}}, false);
  check_c({at(4, -256), DType::kBF16, 8, 1, {}}, true);         // right before
  check_c({at(4, -254), DType::kBF16, 8, 1, {}}, false);
  check_c({at(4, 254), DType::kBF16, -8, -1, {}}, false);       // backwards
  Problem q = p;  // column slices of one buffer of 24
  q.d.row_stride = 24;
  auto slice = [&](int64_t column, int64_t row_stride) {
    Plan plan;
    return make_plan(with_c(q, {at(4, column * 2), DType::kBF16, row_stride, 1, {}}), "", DeviceFacts{}, plan)
        .ok();
  };
  CHECK(slice(8, 24) && slice(16, 24) && slice(-8, 24) && !slice(7, 24) && !slice(17, 24) && !slice(4, 24) &&
        !slice(8, 16));
  q.batch_dims = 1, q.batch[0] = 4;  // the same, of a batch
  q.a.batch_stride[0] = 128, q.d.batch_stride[0] = 16 * 24;
  Matrix c{at(4, 16), DType::kBF16, 24, 1, {16 * 24}};
  Plan plan;
  CHECK(make_plan(with_c(q, c), "", DeviceFacts{}, plan).ok());
  c.data = at(4, 8);
  refuse(with_c(q, c), {"out overlaps c"});
  q = row_major(1, 8, 8);  // in place, whatever the stride of its one row is called
  CHECK(make_plan(with_c(q, {q.d.data, DType::kBF16, 0, 1, {}}), "", DeviceFacts{}, plan).ok());
  q = p;
  q.a.data = q.d.data;
  refuse(q, {"out overlaps a"});
  q = p, q.b.data = at(4, 254);
  refuse(q, {"out overlaps b"});
  q = p, q.bias = {at(4, 32), DType::kBF16, 1, {}};
  refuse(q, {"out overlaps bias"});
  q = p, q.d.row_stride = 7;
  refuse(q, {"out overlaps itself", "size 16", "stride 7"});
  q = p, q.d.row_stride = 0;
  refuse(q, {"out overlaps itself", "stride 0"});
  q = p, q.batch_dims = 1, q.batch[0] = 2;
  refuse(q, {"out overlaps itself", "size 2", "stride 0"});
}

void check_refusals() {
  refuse(row_major(-1, 8, 8), {"M is -1", "from 0 to"});
  refuse(row_major(8, int64_t{1} << 31, 8), {"N is 2147483648", "Split the product along N"});
  refuse(row_major(8, 8, int64_t{1} << 40), {"K is 1099511627776"});
  Problem p = row_major(8, 8, 8);
  p.batch_dims = 1, p.batch[0] = -4;
  refuse(p, {"batch dimension 0 is -4"});
  p = row_major(8, 8, 8), p.a.dtype = DType::kF16;
  refuse(p, {"a is float16", "b is bfloat16"});
  p = row_major(8, 8, 8), p.a.dtype = p.b.dtype = DType::kF32;
  refuse(p, {"a is float32", "Cast"});
  p = row_major(8, 8, 8), p.d.dtype = DType::kF16;
  refuse(p, {"is float16", "bfloat16 or float32"});
  p = with_c(row_major(8, 8, 8), {at(3), DType::kF16, 8, 1, {}});
  refuse(p, {"c is float16", "Cast"});
  p = row_major(8, 8, 8), p.bias = {at(3), DType::kF16, 1, {}};
  refuse(p, {"bias is float16"});
  p = row_major(8, 8, 8), p.a.data = at(1, 1);
  refuse(p, {"address of a", "element size 2"});
  p = row_major(8, 8, 8), p.d = {at(4, 2), DType::kF32, 8, 1, {}};
  refuse(p, {"address of out", "element size 4"});
  p = row_major(8, 8, 8), p.sm_limit = -1;
  refuse(p, {"sm_limit is -1"});
  p = row_major(1, 1, 1);
  p.batch_dims = 2, p.batch[0] = p.batch[1] = 65536;
  for (Matrix* x : {&p.a, &p.b, &p.d}) x->batch_stride[0] = 131072, x->batch_stride[1] = 1;
  refuse(p, {"tiles", "at most 1e9"});
  // 2^31 tiles of a swapped kernel, 2^29 of others.
  p = row_major(64, 1, 8);
  p.batch_dims = 1, p.batch[0] = 1 << 29;
  p.b.batch_stride[0] = 8, p.d.batch_stride[0] = 64;
  CHECK(plan_of(p).waves > 0);
  refuse(p, {"2.15e+09 output tiles", "at most 1e9"}, "bf16_kk_16x128x64_c1x1_s11_swap");
  DeviceFacts a100;
  a100.major = 8;
  Plan plan;
  check_status(make_plan(row_major(8, 8, 8), "", a100, plan), Code::kUnsupportedDevice,
               {"8.0", "9.0", "fallback"});
}

// ---- configs ----------------------------------------------------------------------------------------------

void check_names() {
  const CachePolicy policies[] = {CachePolicy::kNormal, CachePolicy::kEvictFirst, CachePolicy::kEvictLast};
  for (int i = 0; config_name(i); ++i) {
    for (bool along_m : {true, false})
      for (int group : {1, 8, 100000})
        for (int k_period : {0, 1, 8})
          for (int max_ctas : {0, 128})
            for (CachePolicy policy : policies) {
              const Schedule s{.along_m = along_m,
                               .group = group,
                               .k_period = k_period,
                               .max_ctas = max_ctas,
                               .split = 1 + k_period % 3,
                               .tail = max_ctas,
                               .ranges = max_ctas,
                               .waves = group - 1,
                               .a_policy = policy,
                               .b_policy = policies[group % 3],
                               .d_policy = policies[max_ctas % 3]};
              char name[kMaxConfigName], again[kMaxConfigName];
              format_config(kInstances[i], s, name);
              const Instance* instance = nullptr;
              Schedule t;
              CHECK(parse_config(name, instance, t) && instance == &kInstances[i]);
              CHECK(t.along_m == along_m && t.group == group && t.k_period == k_period &&
                    t.max_ctas == max_ctas && t.split == s.split && t.tail == s.tail &&
                    t.ranges == s.ranges && t.waves == s.waves);
              CHECK(t.a_policy == s.a_policy && t.b_policy == s.b_policy && t.d_policy == s.d_policy);
              format_config(*instance, t, again);
              CHECK(!std::strcmp(name, again));
            }
  }
  CHECK(!config_name(-1) && !config_name(kNumInstances));
  const std::string good = "bf16_kn_128x128x64_c1x1_s6_pingpong";
  for (std::string suffix :
       {"+",        "+x8",           "+m",      "+m0",     "+m-1",     "+m+8",     "+m8x",
        "+m 8",     "+m99999999999", "+k",      "+ctas",   "+tail",    "+waves",   "+waves0",
        "+waves1x", "+tail3",        "+tail3x", "+tailx3", "+tail0x1", "+tail1x0", "+tail1+m8x1",
        "+ctas0",   "+split",        "+split0", "+splitx", "+af+",     "+cf",      "+a",
        "+ax",      "++m8",          "x",       "_",       " "})
    refuse(row_major(64, 64, 64), {"the name of a kernel", "\"auto\""}, (good + suffix).c_str());
  for (const std::string& name :
       {std::string("no"), good.substr(0, 20), good + std::string(500, '+'), good + std::string(4000, 'x')})
    refuse(row_major(64, 64, 64), {"the name of a kernel"}, name.c_str());
  refuse(row_major(64, 64, 64), {"does not fit", "bfloat16", "kn"}, "bf16_kk_128x128x64_c1x1_s6_pingpong");
  refuse(row_major(64, 64, 64), {"does not fit"}, "f16_kn_128x128x64_c1x1_s6_pingpong");
}

void check_memory() {
  DeviceFacts h100;
  std::snprintf(h100.name, sizeof h100.name, "NVIDIA H100 80GB HBM3");
  h100.dram_bytes_per_cycle = 1700;
  auto cycles = [](const Plan& plan) { return std::atof(std::strchr(plan.reason, ':') + 1); };
  DeviceFacts fast = h100;
  fast.dram_bytes_per_cycle = 2500;
  for (int64_t m : {1, 16, 64, 128}) {  // these wait for the weights
    const double least = (2.0 * 28672 * 4096) / 1700;
    CHECK(cycles(plan_of(row_major(m, 28672, 4096), "", h100)) > least);
    CHECK(cycles(plan_of(row_major(m, 28672, 4096), "", fast)) < 1.1 * least);
  }
  const Problem large = row_major(8192, 8192, 8192);
  CHECK(cycles(plan_of(large, "", h100)) == cycles(plan_of(large, "", fast)));
}

// A launch for every few waves where a long K lets clusters drift apart; never with a tail, nor for a config
// that is named with its schedule.
void check_launches() {
  struct {
    int64_t m, n, k;
    int launches;
  } const kSizes[] = {{16384, 16384, 16384, 16}, {8192, 8192, 28672, 8}, {4096, 7168, 16384, 4},
                      {12288, 12288, 12288, 1},  {8192, 8192, 8192, 1},  {2048, 8192, 14336, 1},
                      {512, 8192, 28672, 1},     {65536, 64, 65536, 1},  {64, 65536, 65536, 1},
                      {1024, 65536, 16384, 8}};
  const char* const kName = "bf16_kk_128x256x64_c2x1_s4_coop";
  for (const auto& [m, n, k, launches] : kSizes) {
    Problem p = row_major(m, n, k);
    p.b.row_stride = 1, p.b.col_stride = k;
    const Plan plan = plan_of(p, kName);
    CHECK(plan.launches == launches && !!std::strstr(plan.config, "+waves") == (launches > 1));
    CHECK(plan_of(p, plan.config).launches == launches);
    CHECK(plan_of(p, (std::string(kName) + "+ctas128").c_str()).launches == 1);
    CHECK(plan_of(p, (std::string(kName) + "+tail1x2").c_str()).launches == 1);
  }
  for (int64_t k = 64 * 256; k <= 64 * 1024; k += 64 * 128)  // chosen: a tail or launches, not both
    for (int64_t m : {1024, 1500, 2048, 4096}) {
      Problem p = row_major(m, 4224, k);
      p.b.row_stride = 1, p.b.col_stride = k;
      const Plan plan = plan_of(p);
      CHECK(!(std::strstr(plan.config, "+tail") && plan.launches > 1));
    }
  Problem p = row_major(4096, 7168, 16384);
  p.b.row_stride = 1, p.b.col_stride = p.k;
  DeviceFacts facts;
  facts.l2_bytes *= 2;
  CHECK(plan_of(p, kName, facts).launches == 1);
  p.sm_limit = 66;  // half as many clusters, which share less
  CHECK(plan_of(p, kName).launches == 1 && plan_of(p, kName).grid == 64);
}

void check_grids() {
  bool again = true;  // a plan's config, asked for by name, is itself
  for (int sms : {1, 2, 3, 7, 16, 66, 131, 132, 1000})
    for (int limit : {0, 1, 2, 5, 100})
      for (int64_t size : {1, 100, 1000, 8192}) {
        DeviceFacts facts;
        facts.sm_count = sms;
        Problem p = row_major(size, size, 64);
        p.b.row_stride = (size + 7) / 8 * 8, p.sm_limit = limit;
        const Plan plan = plan_of(p, nullptr, facts);
        const Instance* instance;
        Schedule schedule;
        if (!CHECK(parse_config(plan.config, instance, schedule))) return;
        const KernelConfig& c = instance->config;
        CHECK(plan.grid >= 1 && plan.grid <= (limit ? std::min(limit, sms) : sms) &&
              plan.grid % cluster_size(c, schedule.split) == 0);
        const KernelConfig t = as_called(c);
        CHECK(plan.tiles == (size + t.tile_m - 1) / t.tile_m * ((size + t.tile_n - 1) / t.tile_n));
        CHECK(plan.waves * plan.grid >= plan.tiles - 0.5 && plan.flops == 2.0 * size * size * 64);
        again &= !std::strcmp(plan_of(p, plan.config, facts).config, plan.config);
      }
  CHECK(again);
  const char* cluster = "bf16_kn_128x128x64_c2x1_s6_pingpong";
  Problem p = row_major(64, 64, 64);
  p.sm_limit = 1;
  refuse(p, {cluster, "clusters of 2", "c1x1"}, cluster);
  CHECK(plan_of(row_major(4096, 4096, 64), "bf16_kn_128x128x64_c2x1_s6_pingpong+ctas1").grid == 2);
}

// Where no cluster fits on the device, every kernel has one without to stand in for it.
void check_without_cluster() {
  for (int i = 0; i < kNumInstances; ++i) {
    const KernelConfig& c = kInstances[i].config;
    const Instance* one = find_without_cluster(c);
    if (!CHECK(one && cluster_size(one->config) == 1)) continue;
    CHECK(one->config.dtype == c.dtype && one->config.a_major == c.a_major &&
          one->config.b_major == c.b_major && is_swapped(one->config) == is_swapped(c));
    if (cluster_size(c) == 1) CHECK(one == &kInstances[i]);
  }
}

// A split needs a swapped kernel, a cluster that exists, a step of K for each CTA; its clusters are whole.
void check_splits() {
  const std::string swapped = "bf16_kn_16x128x64_c1x1_s11_swap", pair = "bf16_kn_16x128x64_c1x2_s11_swap";
  Problem p = row_major(16, 4096, 512);
  CHECK(plan_of(p, (swapped + "+split4").c_str()).grid == 128);
  CHECK(plan_of(p, (swapped + "+split4").c_str()).tiles == 32);
  for (const char* split : {"+split3", "+split8"})
    refuse(p, {"splits K", "2 or 4"}, (swapped + split).c_str());
  refuse(row_major(16, 4096, 192), {"splits K 4 ways", "3 steps"}, (swapped + "+split4").c_str());
  refuse(p, {"splits K"}, "bf16_kn_128x128x64_c1x1_s6_pingpong+split2");
  p.sm_limit = 7;
  refuse(p, {"clusters of 8 SMs"}, (pair + "+split4").c_str());
  p.sm_limit = 0, p.batch_invariant = true;
  refuse(p, {"batch_invariant", "+split4"}, (swapped + "+split4").c_str());
  // A limit on SMs does not change the bits, as long as the split's clusters fit.
  p = row_major(16, 4096, 10240);
  for (int limit : {0, 4, 16, 64, 131}) {
    p.sm_limit = limit;
    CHECK(std::strstr(plan_of(p).config, "+split2"));
  }
  p.sm_limit = 3;
  CHECK(!std::strstr(plan_of(p).config, "+split"));
}

// A tail has tiles, ranges, steps; its sums lie in the workspace, behind packed operands.
void check_tails() {
  const std::string plain = "bf16_kn_128x128x64_c1x1_s6_pingpong";
  Problem p = row_major(512, 504, 4096);  // 16 tiles of 64 steps
  const Plan all = plan_of(p, (plain + "+tail16x128").c_str());
  CHECK(all.tiles == 16 && all.grid == 128 && all.workspace_bytes == 128 * 128 * 128 * 4);
  CHECK(all.sums_bytes == all.workspace_bytes && plan_of(p, plain.c_str()).workspace_bytes == 0);
  const Plan some = plan_of(p, (plain + "+tail3x7").c_str());  // 192 steps in ranges of 28
  CHECK(some.grid == 13 + 7 && some.workspace_bytes == (3 + 7 - 1) * 128 * 128 * 4);
  refuse(p, {"last 17 tiles of 16", "64 a tile"}, (plain + "+tail17x20").c_str());
  refuse(p, {"into 1025 ranges"}, (plain + "+tail16x1025").c_str());
  refuse(p, {"into 5000 ranges"}, (plain + "+tail16x5000").c_str());
  // So many steps that the walk's places would not fit 32 bits.
  refuse(row_major(4224, 4224, 262144), {"at most"}, "bf16_kn_64x64x64_c1x1_s12_pingpong+tail4096x1");
  refuse(row_major(4224, 4224, 524288), {"at most"}, "bf16_kn_64x64x64_c1x1_s12_pingpong+tail4096x2");
  refuse(p, {"not swapped"}, "bf16_kn_16x128x64_c1x1_s11_swap+tail1x2");
  const Plan packed = plan_of(row_major(512, 504, 4095), "bf16_kn_128x128x64_c1x1_s6_pingpong+tail16x128");
  CHECK(packed.pack_a && packed.workspace_bytes == packed.sums_bytes + 512 * 4096 * 2);
  p.batch_invariant = true;
  refuse(p, {"batch_invariant", "+tail16x128"}, (plain + "+tail16x128").c_str());
  // A long K and few tiles: most SMs would have nothing to do. A limit on SMs does not change the bits.
  p = row_major(448, 448, 40960);
  const Plan whole = plan_of(p);
  const char* const tail = std::strstr(whole.config, "+tail");
  if (!CHECK(tail && whole.grid > 100 && whole.sums_bytes <= kMaxSumsBytes)) return;
  for (int limit : {2, 7, 64}) {
    p.sm_limit = limit;
    const Plan limited = plan_of(p);
    CHECK(limited.grid <= limit && !std::strcmp(limited.config, whole.config));
  }
  p.sm_limit = 0, p.batch_invariant = true;
  CHECK(!std::strstr(plan_of(p).config, "+tail"));
}

// A schedule whose numbers are absurd still visits every tile once.
void check_walk() {
  const KernelConfig c{DType::kBF16, Major::kK, Major::kK, 128, 128, 1, 1, 6, Arrangement::kPingpong};
  Schedule s;
  s.group = 65536;  // times 65536 tiles along M: 2^32
  const TileGrid grid = make_tile_grid({c, s}, int64_t{128} * 65536, 128, 64, 1, 1);
  CHECK(int64_t{grid.group} * grid.m_blocks == grid.per_strip);
  // K turns at coordinates that depend on M and on a row's position.
  Problem p = row_major(4096, 4096, 64);
  p.batch_invariant = true;
  refuse(p, {"batch_invariant", "+k8"}, "bf16_kn_128x128x64_c1x1_s6_pingpong+k8");
}

}  // namespace
}  // namespace hopgemm::test

int main() {
  using namespace hopgemm::test;
  check_majors();
  check_packing();
  check_ones();
  check_store();
  check_paths();
  check_overlap();
  check_refusals();
  check_names();
  check_memory();
  check_launches();
  check_grids();
  check_without_cluster();
  check_splits();
  check_tails();
  check_walk();
  return report("plan_test");
}
