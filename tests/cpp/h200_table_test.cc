// The shipped table of measured winners: each entry is what its own problem gets, in both dtypes, and can
// run; what it gives its neighbours has a name.
#include <cstring>

#include "check.h"
#include "host/config_name.h"
#include "host/measured.h"

namespace hopgemm::test {
namespace {

Problem problem_of(const Measured& e, DType dtype) {
  auto at = [](uintptr_t place) { return reinterpret_cast<const void*>(place << 44); };
  auto pitch = [](int64_t size) { return (size + 7) / 8 * 8; };  // that TMA reads in place
  const KernelConfig c = as_called(e.config.kernel);
  Problem p;
  p.m = e.m, p.n = e.n, p.k = e.k;
  p.a = {at(1), dtype, pitch(p.k), 1, {}};
  if (c.a_major == Major::kMN) p.a.row_stride = 1, p.a.col_stride = pitch(p.m);
  p.b = {at(2), dtype, pitch(p.n), 1, {}};
  if (c.b_major == Major::kK) p.b.row_stride = 1, p.b.col_stride = pitch(p.k);
  p.d = {at(4), dtype, p.n, 1, {}};
  p.batch_invariant = e.use == MeasuredFor::kInvariant;
  return p;
}

bool is_its_own(const Measured& e, DType dtype) {
  const Problem p = problem_of(e, dtype);
  KernelConfig kernel = e.config.kernel;
  kernel.dtype = dtype;
  const Instance* instance;
  Schedule schedule;
  Plan plan, named;
  char reason[sizeof plan.reason], wanted[kMaxConfigName];
  if (!make_plan(p, "", {}, plan).ok() || !parse_config(plan.config, instance, schedule)) return false;
  std::snprintf(reason, sizeof reason, "measured on an H200 SXM at %dx%dx%d%s", e.m, e.n, e.k,
                plan.slower ? "; cuBLAS was measured faster" : "");
  format_config(*instance, e.config.schedule, wanted);
  return instance->config == kernel && !std::strcmp(plan.config, wanted) &&
         !std::strcmp(plan.reason, reason) && make_plan(p, plan.config, {}, named).ok() &&
         !std::strcmp(named.config, plan.config) && !plan.pack_a && !plan.pack_b;
}

// An entry answers for neighbours, whose usual schedule may be another: what they get has a name that gives
// the same.
bool is_itself_by_name(Problem p, int64_t k) {
  for (Matrix* x : {&p.a, &p.b})
    for (int64_t* stride : {&x->row_stride, &x->col_stride})
      if (*stride == (p.k + 7) / 8 * 8) *stride = (k + 7) / 8 * 8;
  p.k = k;
  Plan plan, named;
  return make_plan(p, "", {}, plan).ok() && make_plan(p, plan.config, {}, named).ok() &&
         !std::strcmp(named.config, plan.config) && named.launches == plan.launches &&
         named.grid == plan.grid;
}

void check_entries() {
  CHECK(is_table(h200_table()));
  for (const Measured& e : h200_table())
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      if (e.dtypes == (dtype == DType::kF16 ? MeasuredDTypes::kOnlyBF16 : MeasuredDTypes::kOnlyF16)) continue;
      if (!CHECK(is_its_own(e, dtype))) std::printf("  %dx%dx%d, %s\n", e.m, e.n, e.k, name_of(dtype));
      for (int64_t k : {e.k - e.k / 8, e.k + e.k / 8})
        if (!CHECK(is_itself_by_name(problem_of(e, dtype), k)))
          std::printf("  %dx%dx%d, %s\n", e.m, e.n, static_cast<int>(k), name_of(dtype));
    }
}

}  // namespace
}  // namespace hopgemm::test

int main() {
  hopgemm::test::check_entries();
  return hopgemm::test::report("h200_table_test");
}
