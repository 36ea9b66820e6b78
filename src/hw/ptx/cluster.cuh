// Clusters, dependent launches, warpgroup barriers, matrix stores and registers: one function per
// instruction, named after it.
#pragma once
#include <cstdint>

namespace hopgemm::ptx {

__device__ __forceinline__ uint32_t cluster_ctarank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Which cluster of how many; a grid without clusters has clusters of one.
__device__ __forceinline__ uint32_t clusterid() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}
__device__ __forceinline__ uint32_t nclusterid() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

// The address in the shared memory of another CTA of the cluster that `address` is here.
__device__ __forceinline__ uint32_t mapa(uint32_t address, uint32_t cta) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta));
  return remote;
}
// 2 or 4 floats to shared memory of a CTA of the cluster, some time later; then their bytes are counted on
// `barrier` there, whose waiters see them. Needs no fence: a release at cluster scope is a MEMBAR.ALL.GPU.
// HAZARD: an illegal instruction in a launch without clusters.
template <int kFloats>
__device__ __forceinline__ void st_async(uint32_t address, const float* x, uint32_t barrier) {
  if constexpr (kFloats == 4) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            address),
        "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
        : "memory");
  } else {
    static_assert(kFloats == 2);
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
        "f"(x[0]), "f"(x[1]), "r"(barrier)
        : "memory");
  }
}

// All threads of the cluster. Relaxed: it orders barriers alone, which have a fence of their own
// (fence_mbarrier_init); a release would be a MEMBAR.ALL.GPU.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Programmatic dependent launch: everything that was in the stream before this grid is complete and visible
// after it.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// This CTA no longer keeps the next grid of the stream from being launched (which then waits as above).
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// True in one thread of a warp that is whole. Behind it the compiler knows that one thread runs; behind a
// test of the thread's number it wraps every bulk copy in a loop over all that might.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}"
      : "=r"(elected));
  return elected;
}

// `threads` threads meet at hardware barrier `id` (0 is __syncthreads).
__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Four 8x8 matrices of 16-bit elements; each lane gives the address of one row. PTX ISA, "stmatrix".
__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                            uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// An 8x8 matrix of 16-bit elements, two of a row in each lane, transposed. PTX ISA, "movmatrix".
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ void st_shared_v2(uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

template <int kFloats> __device__ __forceinline__ void ld_shared(uint32_t address, float* x) {
  if constexpr (kFloats == 4) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(address)
                 : "memory");
  } else {
    static_assert(kFloats == 2);
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(address) : "memory");
  }
}
template <class T> __device__ __forceinline__ T ld_shared(uint32_t address);
template <> __device__ __forceinline__ uint32_t ld_shared(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
template <> __device__ __forceinline__ uint16_t ld_shared(uint32_t address) {
  uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
  return x;
}

// HAZARD: the sum over the CTA's warpgroups may not pass the registers at launch, or the increase never
// returns.
template <int kRegisters> __device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> __device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace hopgemm::ptx
