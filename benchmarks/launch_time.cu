// Host time in C++ of planning and launching a product, beside a bare launch with equal parameters: the same
// grid, cluster, attributes and bytes of arguments, and 200 KB of shared memory, of a kernel that does
// nothing.
//
//   nvcc -std=c++20 -arch=sm_90a -Isrc --expt-relaxed-constexpr benchmarks/launch_time.cu .../libhopgemm.so
//   ./a.out > launch_time.json
//
// Microseconds: medians over rounds of the mean over a loop of calls, the contenders in turn, the queue
// drained before each loop and never full.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "api/gemm.h"
#include "kernel/params.h"

namespace {

using namespace hopgemm;
using Params = GemmParams<CUtensorMap>;
constexpr int kCalls = 200, kRounds = 51, kSmemBytes = 200 * 1024;

__global__ void bare(const __grid_constant__ Params) {}

void check(cudaError_t e) {
  if (e != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(e)), std::exit(1);
}
void check(const Status& s) {
  if (!s.ok()) std::fprintf(stderr, "%s\n", s.message), std::exit(1);
}

void launch_bare(const Params& params, int grid, int cluster) {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  config.gridDim = dim3(grid), config.blockDim = dim3(kNumThreads), config.dynamicSmemBytes = kSmemBytes;
  config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : 1;
  void* args[] = {const_cast<Params*>(&params)};
  check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(bare), args));
}

template <class Call> double loop_us(Call&& call) {
  check(cudaDeviceSynchronize());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / kCalls;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
  return x[x.size() / 2];
}

Matrix matrix(int64_t rows, int64_t cols) {
  Matrix x;
  void* data;
  check(cudaMalloc(&data, rows * cols * 2));
  check(cudaMemset(data, 0, rows * cols * 2));
  x.data = data, x.dtype = DType::kBF16, x.row_stride = cols, x.col_stride = 1;
  return x;
}

int cluster_of(const char* config) {  // ..._c2x1_...+split2: 4
  int m = 1, n = 1, split = 1;
  std::sscanf(std::strstr(config, "_c") + 2, "%dx%d", &m, &n);
  if (const char* token = std::strstr(config, "+split")) std::sscanf(token, "+split%d", &split);
  return m * n * split;
}

void run(int64_t m, int64_t n, int64_t k, const char* end) {
  Problem p;
  p.m = m, p.n = n, p.k = k;
  p.a = matrix(m, k), p.b = matrix(n, k), p.d = matrix(m, n);
  std::swap(p.b.row_stride, p.b.col_stride);
  DeviceFacts facts;
  check(device_facts(0, facts));
  Plan plan;
  check(make_plan(p, "", facts, plan));
  void* workspace = nullptr;
  if (plan.workspace_bytes > 0) check(cudaMalloc(&workspace, plan.workspace_bytes));
  const int cluster = cluster_of(plan.config);
  Params params{};

  std::vector<double> planning, ours, bares;
  for (int i = 0; i <= kRounds; ++i) {  // the first warms up
    const double plan_us = loop_us([&] { check(make_plan(p, "", facts, plan)); });
    const double ours_us = loop_us([&] { check(gemm(p, plan, workspace, nullptr)); });
    const double bare_us = loop_us([&] { launch_bare(params, plan.grid, cluster); });
    if (i > 0) planning.push_back(plan_us), ours.push_back(ours_us), bares.push_back(bare_us);
  }
  std::printf(
      "  {\"m\": %lld, \"n\": %lld, \"k\": %lld, \"config\": \"%s\", \"plan_us\": %.2f, \"gemm_us\": %.2f,"
      " \"bare_us\": %.2f}%s\n",
      static_cast<long long>(m), static_cast<long long>(n), static_cast<long long>(k), plan.config,
      median(planning), median(ours), median(bares), end);
}

}  // namespace

int main() {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::seconds(1)) {
  }  // the core's clock rises
  check(cudaFuncSetAttribute(bare, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes));
  std::printf("[\n");
  run(128, 128, 128, ",");
  run(16, 4096, 4096, ",");
  run(512, 512, 512, ",");
  run(4096, 4096, 4096, ",");
  run(64, 2112, 7168, "");
  std::printf("]\n");
}
