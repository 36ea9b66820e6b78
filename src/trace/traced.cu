// The traced kernels: gemm_kernel with TracedHw in place of PtxHw, and two threads of the producer's
// warpgroup that otherwise idle: a watcher, which sees stages land, and a timekeeper, which reads both
// clocks.
#include "trace/traced.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "api/gemm.h"
#include "host/device.h"
#include "host/status.h"
#include "hw/ptx/hw.cuh"
#include "kernel/consumer.h"
#include "kernel/cta.h"
#include "kernel/producer.h"
#include "trace/clocks.cuh"
#include "trace/traced_hw.h"

namespace hopgemm::trace {
namespace {

constexpr int kWatcherWarp = kProducerWarp + 1, kTimekeeperWarp = kProducerWarp + 2;  // one thread of each

struct Buffers {
  Record* records;
  uint32_t* counts;
  ClockPair* clocks;
  uint32_t* sms;
  uint32_t capacity;
};
__constant__ Buffers buffers;

struct CtaState {
  uint32_t counts[kNumRoles], begin[kNumRoles];
  volatile uint32_t ended[kNumConsumers];
};
__device__ __forceinline__ CtaState& cta_state() {
  __shared__ CtaState state;
  return state;
}

// Counts every note, keeps those that there is room for.
__device__ __forceinline__ void note_for(int role, Op op, int where, uint32_t end) {
  CtaState& state = cta_state();
  const uint32_t index = state.counts[role]++;
  if (index >= buffers.capacity) return;
  const size_t stream = size_t{blockIdx.x} * kNumRoles + role;
  reinterpret_cast<uint4*>(buffers.records)[stream * buffers.capacity + index] =
      make_uint4(state.begin[role], end, static_cast<uint32_t>(op), static_cast<uint32_t>(where));
}

// The first thread of a consumer writes for its role, and the producer's only one. All state is in shared
// memory: a consumer has no register to spare.
struct ClockRecorder {
  static __device__ __forceinline__ bool writes(uint32_t thread) {
    return thread % kWarpgroup == 0 || thread / kWarpgroup == kProducerRole;
  }
  __device__ __forceinline__ void begin() const {
    const uint32_t now = ptx::clock(), thread = ptx::tid_x();
    if (writes(thread)) cta_state().begin[thread / kWarpgroup] = now;
  }
  __device__ __forceinline__ void end(Op op, int where) const {
    const uint32_t now = ptx::clock(), thread = ptx::tid_x();
    if (writes(thread)) note_for(thread / kWarpgroup, op, where, now);
  }
};
static_assert(kProducerRole == kNumConsumers);

__device__ __forceinline__ bool cta_ended() { return cta_state().ended[0] && cta_state().ended[1]; }

// Just after a tick of the global timer, whatever its step.
__device__ __forceinline__ ClockPair read_clocks() {
  const uint64_t before = ptx::globaltimer();
  uint64_t after = before;
  while (after == before) after = ptx::globaltimer();
  return {after, ptx::clock64()};
}

__device__ __forceinline__ void keep_time() {
  buffers.clocks[2 * blockIdx.x] = read_clocks();
  while (!cta_ended()) __nanosleep(100);
  buffers.clocks[2 * blockIdx.x + 1] = read_clocks();
  buffers.sms[blockIdx.x] = ptx::smid();
}

// HAZARD: a watcher that is two phases late sees the parity that it waits for as not yet completed, and would
// wait for ever: it stops with the consumers.
template <KernelConfig kConfig>
__device__ __forceinline__ void watch(const PtxHw<kConfig>& hw, const GemmParams<CUtensorMap>& p) {
  PipelineState<kConfig.num_stages> state;
  for (TileScheduler<kConfig> tiles(p.grid, hw.cluster(), hw.num_clusters(), hw.cta_rank()); tiles.valid();
       tiles.next()) {
    for (int left = tiles.piece().k.count; left > 0; --left) {
      while (!ptx::mbarrier_test_wait_parity(hw.full(state.stage), state.phase))
        if (cta_ended()) return;
      cta_state().begin[kWatcherRole] = ptx::clock();
      note_for(kWatcherRole, Op::kLanded, state.stage, cta_state().begin[kWatcherRole]);
      state.advance();
    }
  }
}

__device__ __forceinline__ void save_count(int role) {
  buffers.counts[blockIdx.x * kNumRoles + role] = cta_state().counts[role];
}

// kernel/gemm_kernel.cuh and kernel/producer.h (first_tile) say why each line is where it is.
template <KernelConfig kConfig>
__device__ __forceinline__ void traced_kernel(const GemmParams<CUtensorMap>& params) {
  using Traced = TracedHw<PtxHw<kConfig>, ClockRecorder>;
  static_assert(Hardware<Traced>);
  const int warp = warp_index(), warpgroup = warp / kWarpsPerGroup;
  const int thread = static_cast<int>(threadIdx.x);
  Traced hw(ClockRecorder(), smem_base(), warpgroup < kNumConsumers ? warpgroup : -1);
  if (thread < kNumRoles) cta_state().counts[thread] = 0;
  if (thread < kNumConsumers) cta_state().ended[thread] = 0;
  Tile first{};
  if (warp == kProducerWarp) first = same_in_warp(first_tile(hw, params));
  enter(hw, params.grid.split);
  hw.wait_for_launches();  // every thread: the launch before may still write to the buffers
  if (warpgroup < kNumConsumers) {
    ptx::setmaxnreg_inc<consumer_registers(kConfig)>();
    consume(hw, params);
    if (thread % kWarpgroup == 0) {
      save_count(warpgroup);
      cta_state().ended[warpgroup] = 1;
    }
  } else {
    ptx::setmaxnreg_dec<producer_registers(kConfig)>();
    if (!ptx::elect_one()) return;
    if (warp == kProducerWarp) {
      produce(hw, params, first);
      save_count(kProducerRole);
    } else if (warp == kWatcherWarp) {
      watch<kConfig>(hw, params);
      save_count(kWatcherRole);
    } else if (warp == kTimekeeperWarp) {
      keep_time();
    }
  }
}

__global__ void __launch_bounds__(kNumThreads, 1)
    traced_cooperative(const __grid_constant__ GemmParams<CUtensorMap> params) {
  traced_kernel<kTracedCooperative>(params);
}
__global__ void __launch_bounds__(kNumThreads, 1)
    traced_pingpong(const __grid_constant__ GemmParams<CUtensorMap> params) {
  traced_kernel<kTracedPingpong>(params);
}

// Uniform in [-1, 1), bf16: zeros would run faster than what people multiply.
__global__ void fill_random(uint16_t* x, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t bits = static_cast<uint32_t>(i) * 2654435761u + seed;  // splitmix-like
    bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35u;
    const float value = static_cast<float>(bits ^ bits >> 16) * 0x1p-31f - 1.0f;
    x[i] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  }
}

Status checked(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return {};
  cudaGetLastError();
  return cuda_failure(e, what);
}

template <class T> class DeviceArray {
 public:
  ~DeviceArray() { cudaFree(data_); }
  Status allocate(size_t count) { return checked(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc"); }
  Status read(std::vector<T>& host, size_t count) const {
    host.resize(count);
    return checked(cudaMemcpy(host.data(), data_, count * sizeof(T), cudaMemcpyDefault), "cudaMemcpy");
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

Status timed_launch(const Problem& problem, const Plan& plan, float& milliseconds) {
  cudaEvent_t begin, end;
  HOPGEMM_TRY(checked(cudaEventCreate(&begin), "cudaEventCreate"));
  HOPGEMM_TRY(checked(cudaEventCreate(&end), "cudaEventCreate"));
  cudaEventRecord(begin, nullptr);
  const Status launched = gemm(problem, plan, nullptr, nullptr);
  cudaEventRecord(end, nullptr);
  const Status finished = checked(cudaDeviceSynchronize(), "the traced kernel");
  if (launched.ok() && finished.ok()) cudaEventElapsedTime(&milliseconds, begin, end);
  cudaEventDestroy(begin), cudaEventDestroy(end);
  return launched.ok() ? finished : launched;
}

}  // namespace

const void* address_of_cooperative() { return reinterpret_cast<const void*>(&traced_cooperative); }
const void* address_of_pingpong() { return reinterpret_cast<const void*>(&traced_pingpong); }

Status run_traced(int64_t m, int64_t n, int64_t k, const char* config, int capacity, GpuTrace& trace) {
  DeviceArray<uint16_t> a, b, d;
  HOPGEMM_TRY(a.allocate(m * k));
  HOPGEMM_TRY(b.allocate(n * k));
  HOPGEMM_TRY(d.allocate(m * n));
  Problem p;
  p.m = m, p.n = n, p.k = k;
  p.a = {a.data(), DType::kBF16, k, 1, {}};
  p.b = {b.data(), DType::kBF16, 1, k, {}};
  p.d = {d.data(), DType::kBF16, n, 1, {}};
  int device;
  HOPGEMM_TRY(checked(cudaGetDevice(&device), "cudaGetDevice"));
  DeviceFacts facts;
  HOPGEMM_TRY(device_facts(device, facts));
  Plan plan;
  HOPGEMM_TRY(make_plan(p, config, facts, plan));
  if (plan.path != Path::kGemm || plan.workspace_bytes > 0)
    return failure(Code::kInvalidArgument,
                   "hopgemm.trace: K is %lld; it must be a positive multiple of 8, and so must N",
                   static_cast<long long>(k));
  trace.capacity = capacity;

  const size_t streams = static_cast<size_t>(plan.grid) * kNumRoles;
  DeviceArray<Record> records;
  DeviceArray<uint32_t> counts, sms;
  DeviceArray<ClockPair> clocks;
  HOPGEMM_TRY(records.allocate(streams * capacity));
  HOPGEMM_TRY(counts.allocate(streams));
  HOPGEMM_TRY(clocks.allocate(2 * plan.grid));
  HOPGEMM_TRY(sms.allocate(plan.grid));
  HOPGEMM_TRY(checked(cudaMemset(counts.data(), 0, streams * sizeof(uint32_t)), "cudaMemset"));
  HOPGEMM_TRY(checked(cudaMemset(sms.data(), 0xFF, plan.grid * sizeof(uint32_t)), "cudaMemset"));
  const Buffers where{records.data(), counts.data(), clocks.data(), sms.data(),
                      static_cast<uint32_t>(capacity)};
  HOPGEMM_TRY(checked(cudaMemcpyToSymbol(buffers, &where, sizeof where), "cudaMemcpyToSymbol"));
  fill_random<<<1024, 256>>>(a.data(), m * k, 1);
  fill_random<<<1024, 256>>>(b.data(), n * k, 2);
  HOPGEMM_TRY(checked(cudaDeviceSynchronize(), "fill_random"));

  constexpr int kLaunches = 4;  // the first loads the kernel, and the clock of the SMs rises
  for (int i = 0; i < kLaunches; ++i) HOPGEMM_TRY(timed_launch(p, plan, trace.milliseconds));
  // The launch takes fewer CTAs than were planned where the device holds fewer clusters: those left no mark.
  HOPGEMM_TRY(sms.read(trace.sms, plan.grid));
  trace.num_ctas = static_cast<int>(std::ranges::find(trace.sms, UINT32_MAX) - trace.sms.begin());
  trace.sms.resize(trace.num_ctas);
  const size_t ran = static_cast<size_t>(trace.num_ctas) * kNumRoles;
  HOPGEMM_TRY(records.read(trace.records, ran * capacity));
  HOPGEMM_TRY(counts.read(trace.counts, ran));
  return clocks.read(trace.clocks, 2 * trace.num_ctas);
}

}  // namespace hopgemm::trace
