// make_plan remembers what it chose: a plan must not depend on what the thread planned before.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "host/select.h"

namespace hopgemm::test {
namespace {

struct Asked {
  Problem problem;
  DeviceFacts facts;
};

const void* at(int place) { return reinterpret_cast<const void*>(static_cast<uintptr_t>(place) << 44); }
Matrix matrix(int place, DType dtype, int64_t rows, int64_t cols, bool by_row) {
  return {at(place), dtype, by_row ? cols : 1, by_row ? 1 : rows, {4 * rows * cols, rows * cols}};
}

std::vector<DeviceFacts> devices() {
  DeviceFacts other, fewer, little_l2, slow, little_smem;
  std::strcpy(other.name, "NVIDIA H100 80GB HBM3");
  fewer = little_l2 = slow = little_smem = other;
  fewer.sm_count = 78;
  little_l2.l2_bytes /= 4;
  slow.dram_bytes_per_cycle = 1000;
  little_smem.max_smem_bytes = 220000;
  return {{}, other, fewer, little_l2, slow, little_smem};
}

// All that a choice may look at, each with several values.
std::vector<Asked> questions() {
  std::vector<Asked> all;
  const int64_t sizes[][3] = {{16, 4096, 4096},   {64, 2112, 7168},    {300, 2112, 7168},
                              {64, 2000, 7168},   {64, 2112, 512},     {1000, 1000, 1000},
                              {4096, 4096, 4096}, {1024, 1024, 16384}, {16384, 16384, 16384}};
  for (const auto& [m, n, k] : sizes)
    for (DType dtype : {DType::kBF16, DType::kF16})
      for (DType result : {dtype, DType::kF32})
        for (int majors = 0; majors < 4; ++majors)
          for (int batch : {1, 3, 6})  // 6: two that cannot be one, 2 and 3
            for (int sm_limit : {0, 64})
              for (bool batch_invariant : {false, true})
                for (const DeviceFacts& facts : devices()) {
                  Problem p;
                  p.m = m, p.n = n, p.k = k;
                  p.batch_dims = 2, p.batch[0] = batch == 6 ? 2 : 1, p.batch[1] = batch == 1 ? 1 : 3;
                  p.a = matrix(1, dtype, m, k, majors & 1), p.b = matrix(2, dtype, k, n, majors & 2);
                  p.d = matrix(4, result, m, n, true);
                  p.sm_limit = sm_limit, p.batch_invariant = batch_invariant;
                  all.push_back({p, facts});
                }
  return all;
}

Plan plan_of(const Asked& asked) {
  Plan plan;
  CHECK(make_plan(asked.problem, "", asked.facts, plan).ok());
  return plan;
}

bool same(const Plan& x, const Plan& y) {
  return !std::strcmp(x.config, y.config) && !std::strcmp(x.reason, y.reason) && x.grid == y.grid &&
         x.launches == y.launches && x.workspace_bytes == y.workspace_bytes && x.slower == y.slower;
}

}  // namespace
}  // namespace hopgemm::test

int main() {
  using namespace hopgemm::test;
  std::vector<Asked> all = questions();
  std::vector<hopgemm::Plan> alone(all.size());
  for (size_t i = 0; i < all.size(); ++i)  // nothing is remembered in a new thread
    std::thread([&] { alone[i] = plan_of(all[i]); }).join();

  std::vector<size_t> order(2 * all.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i % all.size();
  for (size_t i : order) CHECK(same(plan_of(all[i]), alone[i]));
  for (int seed = 1; seed <= 4; ++seed) {  // so that questions which share a place come in many orders
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (size_t i : order) CHECK(same(plan_of(all[i]), alone[i]));
  }
  return report("remembered choices");
}
