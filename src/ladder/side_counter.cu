// Side rung: tiles from an atomic counter, as they come, against the static order of the same kernel (rung
// 10's, 128x256 without a cluster). The producer draws the next tile and passes its number on to the
// consumers through shared memory, under a pair of barriers of its own. Not emulated: the contract of hw/hw.h
// has no atomics, since the product has none (which CTA computes a tile must not depend on the others'
// speed).
#include <cuda_runtime_api.h>

#include "host/device.h"
#include "ladder/kernel.cuh"

namespace hopgemm::ladder {
namespace {

constexpr KernelConfig config(DType t) { return two_consumers(t, 128, 256, 1, 4); }

struct Static {
  static constexpr KernelConfig config(DType t) { return ladder::config(t); }
  static constexpr Schedule kSchedule{.group = 8};
  static constexpr bool kPersistent = true, kReallocate = true;
  static constexpr int kConsumers = 2, kProducer = kWarpgroup, kCtasPerSm = 1, kStepN = 64;

  template <class Hw> static __device__ void produce(Hw& hw, const Params<Hw>& p) {
    produce_tiles(hw, p, static_tiles(hw, p));
  }
  template <class Hw> static __device__ void consume(Hw& hw, const Params<Hw>& p) {
    StagingState staging;
    consume_tiles(hw, p, static_tiles(hw, p),
                  [&](const auto& acc, const Tile& t) { store_overlapped(hw, acc, t, p, staging); });
  }
};

constexpr int kSlots = 2;

// Tile numbers on their way from the producer to the consumers.
struct Mailbox {
  int number[kSlots];
  uint64_t full[kSlots], empty[kSlots];
};

__device__ __forceinline__ uint32_t address(const uint64_t& barrier) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
}

// The scheduler's interface over the mailbox. kDraws: the producer, one thread; else every thread of a
// consumer.
template <bool kDraws> class CountedTiles {
 public:
  __device__ __forceinline__ CountedTiles(const TileGrid& grid, Mailbox& box, int* counter)
      : grid_(grid),
        box_(box),
        counter_(counter) {
    next();
  }
  __device__ __forceinline__ bool valid() const { return number_ < grid_.num_blocks; }
  __device__ __forceinline__ void next() {
    const int slot = state_.stage;
    if constexpr (kDraws) {
      number_ = atomicAdd(counter_, 1);
      ptx::mbarrier_wait_parity(address(box_.empty[slot]), state_.phase ^ 1);
      box_.number[slot] = number_;
      ptx::mbarrier_arrive(address(box_.full[slot]));  // releases the number
    } else {
      ptx::mbarrier_wait_parity(address(box_.full[slot]), state_.phase);
      number_ = box_.number[slot];
      ptx::mbarrier_arrive(address(box_.empty[slot]));
    }
    state_.advance();
  }
  __device__ __forceinline__ Tile tile() const {
    const Block b = block_at(grid_, number_);
    Tile t{};
    t.m = b.m * config(DType::kBF16).tile_m, t.n = b.n * config(DType::kBF16).tile_n;
    return t;
  }

 private:
  const TileGrid& grid_;
  Mailbox& box_;
  int* counter_;
  int number_ = 0;
  PipelineState<kSlots> state_;
};

// As run_roles(), with the mailbox and the counter.
template <DType kType> __global__ void __launch_bounds__(kThreads<Static>, 1)
    counter_kernel(const __grid_constant__ GemmParams<CUtensorMap> p, int* counter) {
  constexpr KernelConfig kConfig = config(kType);
  __shared__ Mailbox box;
  const uint32_t smem = smem_base();
  const int warpgroup = warp_index() / kWarpsPerGroup;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      ptx::mbarrier_init(address(box.full[i]), 1);
      ptx::mbarrier_init(address(box.empty[i]), kNumConsumers * kWarpgroup);
    }
  }
  PtxHw<kConfig> any(smem, -1);
  enter(any, p.grid.split);
  if (warpgroup < kNumConsumers) {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    PtxHw<kConfig> hw(smem, warpgroup);
    StagingState staging;
    consume_tiles(hw, p, CountedTiles<false>(p.grid, box, counter),
                  [&](const auto& acc, const Tile& t) { store_overlapped(hw, acc, t, p, staging); });
  } else {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == kNumConsumers * kWarpgroup)
      produce_tiles(any, p, CountedTiles<true>(p.grid, box, counter));
  }
}

// The counter starts at 0 in every launch; it comes from and goes back to the stream's own memory pool.
Status launch_counter(const Rung& rung, const Call& call, void* stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  void* counter = nullptr;
  if (cudaError_t e = cudaMallocAsync(&counter, sizeof(int), s)) {
    cudaGetLastError();
    return cuda_failure(e, "cudaMallocAsync");
  }
  const cudaError_t cleared = cudaMemsetAsync(counter, 0, sizeof(int), s);
  const Status launched =
      cleared ? cuda_failure(cleared, "cudaMemsetAsync") : launch_tma(rung, call, s, counter);
  const cudaError_t freed = cudaFreeAsync(counter, s);
  HOPGEMM_TRY(launched);
  return freed ? cuda_failure(freed, "cudaFreeAsync") : Status{};
}

Rung counter_rung() {
  Rung rung = make_rung<Static>("counter", "tiles from an atomic counter, 128x256, no cluster");
  rung.launch = &launch_counter;
  rung.kernels[static_cast<int>(DType::kF16)] = reinterpret_cast<const void*>(&counter_kernel<DType::kF16>);
  rung.kernels[static_cast<int>(DType::kBF16)] = reinterpret_cast<const void*>(&counter_kernel<DType::kBF16>);
  return rung;
}

}  // namespace

extern const Rung kSideStatic = make_rung<Static>("static", "the same kernel with the static order");
extern const Rung kSideCounter = counter_rung();

}  // namespace hopgemm::ladder
