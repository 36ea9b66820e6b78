// mbarrier: one function per instruction. PTX ISA, "Parallel Synchronization and Communication Instructions:
// mbarrier". Barriers are 32-bit shared-memory addresses.
#pragma once
#include <cstdint>

namespace hopgemm::ptx {

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the initialized barriers known to the async proxy and to the whole cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Acquire at CTA scope. try_wait suspends the thread in hardware for a while before it answers false.
__device__ __forceinline__ void mbarrier_wait_parity(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finish;\n"
      "bra wait;\n"
      "finish:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// The same place in another CTA of the cluster. Relaxed: it orders no data, since what it announces (finished
// reads) was waited for. HAZARD: the .release.cluster form costs a MEMBAR.ALL.GPU in the main loop.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier, uint32_t cta) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(cta)
      : "memory");
}

// Acquire at cluster scope, for what peers have written into this CTA's shared memory.
__device__ __forceinline__ void mbarrier_wait_parity_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finish;\n"
      "bra wait;\n"
      "finish:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace hopgemm::ptx
