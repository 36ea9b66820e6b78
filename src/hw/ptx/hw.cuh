// PtxHw: the contract of hw/hw.h on the GPU. Its calls pick the lanes; the instructions are in the files
// beside it.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "hw/hw.h"
#include "hw/ptx/cluster.cuh"
#include "hw/ptx/mbarrier.cuh"
#include "hw/ptx/tma.cuh"
#include "hw/ptx/wgmma.cuh"
#include "kernel/layout.h"
#include "scheduler/tile_scheduler.h"

namespace hopgemm {

// One value for the whole warp, and known to the compiler as such. Without the shuffle it works the value out
// anew wherever it is used, before every single copy.
template <class T> __device__ __forceinline__ T same_in_warp(T x) { return __shfl_sync(0xffffffff, x, 0); }

// The compiler works it out here, not where it is used.
__device__ __forceinline__ Tile same_in_warp(const Tile& t) {
  return {same_in_warp(t.m),
          same_in_warp(t.n),
          same_in_warp(t.batch_inner),
          same_in_warp(t.batch_outer),
          {same_in_warp(t.k.first), same_in_warp(t.k.count), same_in_warp(t.k.step)},
          same_in_warp(t.is_part)};
}

__device__ __forceinline__ int warp_index() { return same_in_warp(static_cast<int>(threadIdx.x) / kWarp); }

// The 1024-byte aligned start of dynamic shared memory.
__device__ __forceinline__ uint32_t smem_base() {
  extern __shared__ uint8_t shared[];
  const uint32_t raw = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  return same_in_warp((raw + kAtomBytes - 1) / kAtomBytes * kAtomBytes);
}

template <KernelConfig kConfig> class PtxHw {
 public:
  static constexpr KernelConfig kKernelConfig = kConfig;
  using TensorMap = CUtensorMap;
  struct Accumulator {
    float v[mma_rows(kConfig)][kConfig.tile_n / 2];
  };
  struct Rounded {  // pairs of 16-bit elements
    uint32_t v[mma_rows(kConfig)][kConfig.tile_n / 4];
  };

  // By whole warps. `smem`: smem_base(). `consumer`: -1 in the producer.
  __device__ __forceinline__ PtxHw(uint32_t smem, int consumer)
      : smem_(smem),
        consumer_(consumer),
        rank_(may_have_peers(kConfig) ? same_in_warp(ptx::cluster_ctarank()) : 0),
        thread_(threadIdx.x % kWarpgroup) {}

  // A swapped kernel learns of its split at launch; for the others these are constants, which cost no
  // register.
  __device__ __forceinline__ int cluster() const {
    return is_swapped(kConfig) ? ptx::clusterid() : blockIdx.x / cluster_size(kConfig);
  }
  __device__ __forceinline__ int num_clusters() const {
    return is_swapped(kConfig) ? ptx::nclusterid() : gridDim.x / cluster_size(kConfig);
  }
  __device__ __forceinline__ int cta_rank() const { return rank_; }
  __device__ __forceinline__ int consumer() const { return consumer_; }

  __device__ __forceinline__ bool is_leader() const { return threadIdx.x == 0; }
  __device__ __forceinline__ void cta_sync() { __syncthreads(); }
  __device__ __forceinline__ void cluster_sync() { ptx::cluster_sync(); }
  __device__ __forceinline__ void wait_for_launches() { ptx::griddepcontrol_wait(); }
  __device__ __forceinline__ void allow_next_launch() { ptx::griddepcontrol_launch_dependents(); }

  // ---- barriers ----
  __device__ __forceinline__ void init(uint32_t barrier, int arrivals) {
    ptx::mbarrier_init(barrier, arrivals);
  }
  __device__ __forceinline__ void fence_init() { ptx::fence_mbarrier_init(); }
  __device__ __forceinline__ uint32_t full(int stage) const { return barrier(full_index(kConfig, stage)); }
  __device__ __forceinline__ uint32_t empty(int stage) const { return barrier(empty_index(kConfig, stage)); }
  __device__ __forceinline__ uint32_t turn(int consumer) const {
    return barrier(turn_index(kConfig, consumer));
  }
  __device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    ptx::mbarrier_wait_parity(barrier, parity);
  }
  __device__ __forceinline__ void arrive(uint32_t barrier) {
    if (thread_ == 0) ptx::mbarrier_arrive(barrier);
  }
  __device__ __forceinline__ void arrive_expect_tx(uint32_t barrier, int bytes) {
    if (consumer_ < 0 || thread_ == 0) ptx::mbarrier_arrive_expect_tx(barrier, bytes);
  }
  __device__ __forceinline__ void arrive_cluster(uint32_t barrier, uint32_t mask) {
    if constexpr (cluster_size(kConfig) == 1) {
      arrive(barrier);
    } else {
      constexpr int kMost = is_swapped(kConfig) ? kMaxClusterSize : cluster_size(kConfig);
      if (thread_ < kMost && (mask >> thread_ & 1)) ptx::mbarrier_arrive_cluster(barrier, thread_);
    }
  }

  // ---- operands ----
  template <bool kMulticast> __device__ __forceinline__ void load(const CUtensorMap& map, int offset,
                                                                  uint32_t barrier, int c0, int c1, int c2,
                                                                  int c3, uint32_t mask, CachePolicy policy) {
    if constexpr (kMulticast) {
      ptx::tma_load_multicast(smem_ + offset, &map, barrier, c0, c1, c2, c3, static_cast<uint16_t>(mask),
                              policy);
    } else {
      ptx::tma_load(smem_ + offset, &map, barrier, c0, c1, c2, c3, policy);
    }
  }

  __device__ __forceinline__ void mma(Accumulator& acc, int stage, bool accumulate) {
    const int first_row = is_cooperative(kConfig) ? consumer_ * consumer_m(kConfig) : 0;
    const uint64_t a = ptx::advanced(
        ptx::smem_descriptor(smem_ + mma_offset(a_tile(kConfig), first_row, 0), kConfig.a_major),
        stage * ptx::descriptor_units(a_stage_bytes(kConfig)));
    const uint64_t b =
        ptx::advanced(ptx::smem_descriptor(smem_ + b_offset(kConfig, 0), kConfig.b_major, b_chunk(kConfig)),
                      stage * ptx::descriptor_units(b_stage_bytes(kConfig)));
    fence_accumulator(acc);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTileK / kMmaK; ++step) {
#pragma unroll
      for (int row = 0; row < mma_rows(kConfig); ++row) {
        mma_columns<0, first_mma_n(kConfig.tile_n)>(
            acc.v[row],
            ptx::advanced(a, ptx::descriptor_units(mma_offset(a_tile(kConfig), row * kMmaM, step))), b, step,
            accumulate || step > 0);
      }
    }
  }
  __device__ __forceinline__ void mma_commit() { ptx::wgmma_commit_group(); }
  template <int kPending> __device__ __forceinline__ void mma_wait(Accumulator& acc) {
    ptx::wgmma_wait_group<kPending>();
    if constexpr (kPending == 0) fence_accumulator(acc);
  }

  // ---- results ----
  __device__ __forceinline__ void scale(Accumulator& acc, const EpilogueParams& e, const Tile& t) {
#pragma unroll
    for (int row = 0; row < mma_rows(kConfig); ++row) {
#pragma unroll
      for (int i = 0; i < kConfig.tile_n / 2; ++i) acc.v[row][i] *= e.alpha;
    }
    for (int addend = 0; addend < 2; ++addend) {  // not unrolled: one copy of the code serves c and bias
      const EpilogueMatrix x = addend == 0 ? e.c : e.bias;
      const float factor = addend == 0 ? e.beta : 1.0f;
      if (x.data && x.dtype == DType::kF32) add_matrix<float>(acc, x, factor, e, t);
      if (x.data && x.dtype != DType::kF32) add_matrix<Half>(acc, x, factor, e, t);
    }
  }

  __device__ __forceinline__ void round(const Accumulator& acc, Rounded& rounded) {
#pragma unroll
    for (int row = 0; row < mma_rows(kConfig); ++row) {
#pragma unroll
      for (int i = 0; i < kConfig.tile_n / 4; ++i)
        rounded.v[row][i] = round_pair(acc.v[row][2 * i], acc.v[row][2 * i + 1]);
    }
  }

  template <int kColumns>
  __device__ __forceinline__ void stage(const Rounded& rounded, int row, int column, int slot) {
    const uint32_t base = smem_ + staging_offset(kConfig, consumer_, slot);
    const uint32_t* r = &rounded.v[row][column / 4];
#pragma unroll
    for (int pair = 0; pair < kColumns / 16; ++pair) {
      ptx::stmatrix_x4(base + stmatrix_offset(thread_ / kWarp, thread_ % kWarp, pair), r[4 * pair],
                       r[4 * pair + 1], r[4 * pair + 2], r[4 * pair + 3]);
    }
  }
  template <int kColumns>
  __device__ __forceinline__ void stage(const Accumulator& acc, int row, int column, int slot) {
    const uint32_t base = smem_ + staging_offset(kConfig, consumer_, slot);
    const int warp = thread_ / kWarp, lane = thread_ % kWarp;
    const float* v = &acc.v[row][column / 2];
    const bool exchange = fp32_group(lane, 0) != 0;
#pragma unroll
    for (int group = 0; group < 4; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float *own = v + 4 * group + 2 * half, *other = v + 4 * (group ^ 2) + 2 * half;
        ptx::st_shared_v2(base + fp32_offset(warp, lane, half, fp32_group(lane, group)),
                          exchange ? other[0] : own[0], exchange ? other[1] : own[1]);
      }
    }
  }
  __device__ __forceinline__ void fence_proxy_async() { ptx::fence_proxy_async(); }
  __device__ __forceinline__ void consumer_sync() { ptx::bar_sync(1 + consumer_, kWarpgroup); }
  __device__ __forceinline__ void store(const CUtensorMap& map, int slot, int n, int m, int batch_inner,
                                        int batch_outer, CachePolicy policy) {
    if (thread_ == 0) {
      ptx::tma_store(&map, smem_ + staging_offset(kConfig, consumer_, slot), n, m, batch_inner, batch_outer,
                     policy);
      ptx::tma_store_commit();
    }
  }
  // Each warp sends the 16 rows that it staged itself, a few at a time: their loads are in flight together.
  template <int kColumns> __device__ __forceinline__ void store_direct(const EpilogueParams& e, int slot,
                                                                       int m, int n, const Tile& t) {
    using Element = std::conditional_t<kColumns == 64, uint16_t, uint32_t>;
    const int lane = thread_ % kWarp, first = thread_ / kWarp * 16;
    const uint32_t staging = smem_ + staging_offset(kConfig, consumer_, slot);
    Element* d = static_cast<Element*>(const_cast<void*>(e.d.data)) + t.batch_inner * e.d.batch_inner_stride +
                 t.batch_outer * e.d.batch_outer_stride + (m + first) * e.d.row_stride + n + lane;
    constexpr int kRows = 2, kAcross = kColumns / 32;
    __syncwarp();
#pragma unroll 1  // one copy of this loop for each piece of the tile is enough code
    for (int row = first; row < first + 16; row += kRows) {
      Element values[kRows][kAcross];
#pragma unroll
      for (int i = 0; i < kRows * kAcross; ++i) {
        const int byte = (i % kAcross * 32 + lane) * static_cast<int>(sizeof(Element));
        values[i / kAcross][i % kAcross] =
            ptx::ld_shared<Element>(staging + swizzle128(row + i / kAcross, byte));
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r, d += e.d.row_stride) {
#pragma unroll
        for (int i = 0; i < kAcross; ++i)
          if (m + row + r < e.m && n + i * 32 + lane < e.n) d[i * 32] = values[r][i];
      }
    }
    if (thread_ == 0)
      ptx::tma_store_commit();  // an empty group: store_wait_read counts pieces, however they leave
  }
  template <int kPending> __device__ __forceinline__ void store_wait_read() {
    if (thread_ == 0) ptx::tma_store_wait_read<kPending>();
    consumer_sync();
  }
  __device__ __forceinline__ void store_drain() {
    if (thread_ == 0) ptx::tma_store_wait<0>();
  }

  // ---- partial sums ----
  __device__ __forceinline__ uint32_t sums_full() const { return barrier(sums_full_index(kConfig)); }
  __device__ __forceinline__ uint32_t sums_empty() const { return barrier(sums_empty_index(kConfig)); }
  __device__ __forceinline__ void wait_peers(uint32_t barrier, uint32_t parity) {
    ptx::mbarrier_wait_parity_cluster(barrier, parity);
  }
  __device__ __forceinline__ void send_sums(const Accumulator& acc, int split) {
    for_split(split, [&](auto of) {
      constexpr int kLength = part_length(kConfig, of), kVector = vector_length(kLength);
      const int own = split_index(kConfig, cta_rank());
#pragma unroll
      for (int part = 0; part < of; ++part) {
        if (part == own) continue;
        const uint32_t owner = split_cta(part), full = ptx::mapa(sums_full(), owner);
#pragma unroll
        for (int i = 0; i < kLength; i += kVector)
          ptx::st_async<kVector>(ptx::mapa(sums_at(of, own, i), owner), &acc.v[0][part * kLength + i], full);
      }
    });
  }
  __device__ __forceinline__ void add_sums(Accumulator& acc, int split) {
    for_split(split, [&](auto of) {
      constexpr int kLength = part_length(kConfig, of), kVector = vector_length(kLength);
      const int own = split_index(kConfig, cta_rank());
#pragma unroll
      for (int i = 0; i < kLength; i += kVector) {
        float sum[kVector], part[kVector];
#pragma unroll
        for (int source = 0; source < of; ++source) {
          float* const to = source == 0 ? sum : part;
          if (source == own) copy<kVector>(&acc.v[0][source * kLength + i], to);
          else ptx::ld_shared<kVector>(sums_at(of, source, i), to);
#pragma unroll
          for (int j = 0; j < kVector; ++j)
            if (source > 0) sum[j] += part[j];
        }
#pragma unroll
        for (int place = 0; place < of; ++place)
          if (place == own) copy<kVector>(sum, &acc.v[0][place * kLength + i]);
      }
    });
  }
  __device__ __forceinline__ void store_sums(const Accumulator& acc, const EpilogueParams& e, const Tile& t,
                                             int split) {
    if (e.d.dtype == DType::kF32) store_fp32(acc, e, t, split);
    else store_half(acc, e, t, split);
  }
  __device__ __forceinline__ void arrive_split(uint32_t barrier, int split) {
    if (thread_ < split) ptx::mbarrier_arrive_cluster(barrier, split_cta(thread_));
  }

 private:
  // f(split), as a constant.
  template <class F> __device__ __forceinline__ static void for_split(int split, F&& f) {
    static_assert(kMaxSplit == 4);
    if (split == 2) f(std::integral_constant<int, 2>{});
    else f(std::integral_constant<int, 4>{});
  }

  // Rank of the CTA that has this one's tile and part `index` of K.
  __device__ __forceinline__ int split_cta(int index) const {
    return cta_rank() % cluster_size(kConfig) + index * cluster_size(kConfig);
  }

  // Where sum `i` of the part from CTA `source` of a split of `of` lies, of this thread.
  __device__ __forceinline__ uint32_t sums_at(int of, int source, int i) const {
    return smem_ + part_offset(kConfig, of, consumer_, source) +
           sum_byte(part_length(kConfig, of), thread_, i);
  }
  template <int kCount> __device__ __forceinline__ static void copy(const float* from, float* to) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
  // Is a thread's sum `index` in this CTA's part?
  __device__ __forceinline__ bool is_own(int index, int split) const {
    return part_of(kConfig, index, split) == split_index(kConfig, cta_rank());
  }
  template <class T>
  __device__ __forceinline__ static T* element(const EpilogueMatrix& x, const Tile& t, int m, int n) {
    return static_cast<T*>(const_cast<void*>(x.data)) + t.batch_inner * x.batch_inner_stride +
           t.batch_outer * x.batch_outer_stride + m * x.row_stride + n * x.col_stride;
  }

  __device__ __forceinline__ void store_fp32(const Accumulator& acc, const EpilogueParams& e, const Tile& t,
                                             int split) {
    const RowCol first = accumulator_at(thread_, 0);
    const int m = t.m + first.row, n = t.n + first.col;
    float* const d = element<float>(e.d, t, m, n);
#pragma unroll
    for (int i = 0; i < accumulator_registers(kConfig); ++i) {
      const RowCol at = accumulator_at(0, i);  // from the first one
      if (m + at.row < e.m && n + at.col < e.n && is_own(i, split))
        d[at.row * e.d.row_stride + at.col * e.d.col_stride] = acc.v[0][i];
    }
  }

  // Rows lie side by side in the result, columns in the accumulator: 8x8 matrices are transposed, and pairs
  // of threads exchange halves, until a thread has kRowsAtOnce rows of a column; four threads fill 32 bytes.
  __device__ __forceinline__ void store_half(const Accumulator& acc, const EpilogueParams& e, const Tile& t,
                                             int split) {
    constexpr int kBlocks = kConfig.tile_n / 8;
    const bool odd = thread_ & 1;
    uint32_t pairs[kBlocks][2];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float* const v = &acc.v[0][4 * block];
      const uint32_t upper = ptx::movmatrix_trans(round_pair(v[0], v[1])),
                     lower = ptx::movmatrix_trans(round_pair(v[2], v[3]));
      const uint32_t other = __shfl_xor_sync(0xffffffff, odd ? upper : lower, 1);
      pairs[block][0] = odd ? other : upper, pairs[block][1] = odd ? lower : other;
    }
    const RowCol at = transposed_at(thread_);
    const int m = t.m + at.row, n = t.n + at.col, rows = e.m - m;
    uint16_t* d = element<uint16_t>(e.d, t, m, n);
    const bool is_whole = rows >= kRowsAtOnce && reinterpret_cast<uintptr_t>(d) % 8 == 0;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block, d += 8 * e.d.col_stride) {
      if (n + 8 * block >= e.n || !is_own(accumulator_index(at.row, at.col + 8 * block), split)) continue;
      if (is_whole) {
        *reinterpret_cast<uint2*>(d) = {pairs[block][0], pairs[block][1]};
      } else {
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r)
          if (r < rows) d[r] = static_cast<uint16_t>(pairs[block][r / 2] >> r % 2 * 16);
      }
    }
  }

  __device__ __forceinline__ uint32_t barrier(int index) const {
    return smem_ + barrier_offset(kConfig, index);
  }

  __device__ __forceinline__ static void fence_accumulator(Accumulator& acc) {
#pragma unroll
    for (int row = 0; row < mma_rows(kConfig); ++row) {
#pragma unroll
      for (int i = 0; i < kConfig.tile_n / 2; ++i) ptx::fence_register(acc.v[row][i]);
    }
  }

  // Columns [kFirst, kFirst + kN) of one 64-row block, then the rest of the tile.
  template <int kFirst, int kN> __device__ __forceinline__ static void mma_columns(float* d, uint64_t a,
                                                                                   uint64_t b, int step,
                                                                                   bool accumulate) {
    constexpr int kTransA = kConfig.a_major == Major::kMN, kTransB = kConfig.b_major == Major::kMN;
    ptx::Wgmma<kN, kConfig.dtype, kTransA, kTransB>::mma(
        d + kFirst / 2, a, ptx::advanced(b, ptx::descriptor_units(mma_offset(b_tile(kConfig), kFirst, step))),
        accumulate);
    if constexpr (kFirst + kN < kConfig.tile_n) {
      mma_columns<kFirst + kN, kConfig.tile_n - kFirst - kN>(d, a, b, step, accumulate);
    }
  }

  // To nearest even, the lower column in the lower half.
  __device__ __forceinline__ static uint32_t round_pair(float low, float high) {
    if constexpr (kConfig.dtype == DType::kBF16) {
      const __nv_bfloat162 r = __floats2bfloat162_rn(low, high);
      return *reinterpret_cast<const uint32_t*>(&r);
    } else {
      const __half2 r = __floats2half2_rn(low, high);
      return *reinterpret_cast<const uint32_t*>(&r);
    }
  }

  using Half = std::conditional_t<kConfig.dtype == DType::kBF16, __nv_bfloat16, __half>;
  __device__ __forceinline__ static float to_float(float x) { return x; }
  __device__ __forceinline__ static float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
  __device__ __forceinline__ static float to_float(__half x) { return __half2float(x); }

  // acc += factor * x; what lies outside the result is not read.
  template <class T> __device__ __forceinline__ void add_matrix(Accumulator& acc, const EpilogueMatrix& x,
                                                                float factor, const EpilogueParams& e,
                                                                const Tile& t) {
    constexpr int kBatch = 32;  // columns whose loads are in flight together: more would spill
    const RowCol at = accumulator_at(thread_, 0);
    const T* base = static_cast<const T*>(x.data) + t.batch_inner * x.batch_inner_stride +
                    t.batch_outer * x.batch_outer_stride;
#pragma unroll
    for (int half = 0; half < 2 * mma_rows(kConfig); ++half) {
      const int row = t.m + at.row + half * 8 + half / 2 * (kMmaM - 16);
      const T* p = base + row * x.row_stride + (t.n + at.col) * x.col_stride;
      const int columns =
          row < e.m ? e.n - t.n - at.col : 0;  // how many this thread may still read from p on
#pragma unroll
      for (int column = 0; column < kConfig.tile_n; column += 8, p += 8 * x.col_stride) {
        float* out = &acc.v[half / 2][column / 2 + half % 2 * 2];
        if (column < columns) out[0] = fmaf(factor, to_float(p[0]), out[0]);
        if (column + 1 < columns) out[1] = fmaf(factor, to_float(p[x.col_stride]), out[1]);
        if (column % kBatch == kBatch - 8)
          asm volatile("" ::: "memory");  // the next batch's loads stay behind these
      }
    }
  }

  uint32_t smem_;
  int consumer_, rank_, thread_;
};

}  // namespace hopgemm
