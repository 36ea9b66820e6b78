// Side rung: sums in fp16. They need half the registers, so a tile of 256x256 fits; and every addition rounds
// to 11 bits. `hopgemm ladder` prints what that costs beside what it gains. Not like the other rungs: it is
// exact only where every partial sum is.
#include "ladder/kernel.cuh"

namespace hopgemm::ladder {
namespace {

#define HOPGEMM_D4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define HOPGEMM_D16(i) HOPGEMM_D4(i), HOPGEMM_D4(i + 4), HOPGEMM_D4(i + 8), HOPGEMM_D4(i + 12)

// PTX ISA, "wgmma.mma_async": D (fp16 pairs, registers) += A (shared) x B (shared), m64n256k16.
__device__ __forceinline__ void wgmma_m64n256k16_f16(uint32_t* d, uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n256k16.f16.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;}"
      : HOPGEMM_D16(0), HOPGEMM_D16(16), HOPGEMM_D16(32), HOPGEMM_D16(48)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// PtxHw but for the accumulator: pairs of columns, laid out like the rounded result, which it is.
template <KernelConfig kConfig> class Fp16Hw : public PtxHw<kConfig> {
 public:
  using Base = PtxHw<kConfig>;
  using Rounded = typename Base::Rounded;
  using Accumulator = Rounded;
  __device__ __forceinline__ Fp16Hw(uint32_t smem, int consumer) : Base(smem, consumer), smem_(smem) {}

  __device__ __forceinline__ void mma(Accumulator& acc, int stage, bool accumulate) {
    const int first_row = Base::consumer() * consumer_m(kConfig);
    const uint64_t a = ptx::smem_descriptor(
        smem_ + a_offset(kConfig, stage) + mma_offset(a_tile(kConfig), first_row, 0), Major::kK);
    const uint64_t b = ptx::smem_descriptor(smem_ + b_offset(kConfig, stage), Major::kK);
    fence(acc);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / kMmaK; ++step) {
#pragma unroll
      for (int row = 0; row < mma_rows(kConfig); ++row)
        wgmma_m64n256k16_f16(acc.v[row], a + (mma_offset(a_tile(kConfig), row * kMmaM, step) >> 4),
                             b + (mma_offset(b_tile(kConfig), 0, step) >> 4), accumulate || step > 0);
    }
  }
  template <int kPending> __device__ __forceinline__ void mma_wait(Accumulator& acc) {
    ptx::wgmma_wait_group<kPending>();
    if constexpr (kPending == 0) fence(acc);
  }
  __device__ __forceinline__ void round(const Accumulator& acc, Rounded& rounded) { rounded = acc; }

 private:
  // As ptx::fence_register: no use of the sums may move across.
  __device__ __forceinline__ static void fence(Accumulator& acc) {
#pragma unroll
    for (int row = 0; row < mma_rows(kConfig); ++row) {
#pragma unroll
      for (int i = 0; i < kConfig.tile_n / 4; ++i) asm volatile("" : "+r"(acc.v[row][i])::"memory");
    }
  }
  uint32_t smem_;
};

struct Fp16Accumulate {
  static constexpr KernelConfig config(DType t) { return two_consumers(t, 256, 256, 1, 3); }
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

constexpr KernelConfig kConfig = Fp16Accumulate::config(DType::kF16);

__global__ void __launch_bounds__(kThreads<Fp16Accumulate>, Fp16Accumulate::kCtasPerSm)
    fp16_accumulate_kernel(const __grid_constant__ GemmParams<CUtensorMap> p) {
  run_roles<Fp16Accumulate, Fp16Hw<kConfig>>(p);
}

}  // namespace

extern const Rung kSideFp16{"fp16acc",
                            "fp16 sums, 256x256",
                            kConfig.tile_m,
                            Fp16Accumulate::kStepN,
                            kTileK,
                            false,
                            true,
                            &launch_tma,
                            {reinterpret_cast<const void*>(&fp16_accumulate_kernel), nullptr},
                            kConfig,
                            Fp16Accumulate::kSchedule,
                            kThreads<Fp16Accumulate>,
                            Fp16Accumulate::kPersistent};

}  // namespace hopgemm::ladder
