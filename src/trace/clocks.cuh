// What only a trace asks of the hardware: one function per instruction, named after it.
#pragma once
#include <cstdint>

namespace hopgemm::ptx {

// The SM's cycle counter; PTX ISA, "%clock", "%clock64". Volatile: it keeps its place among other volatile
// asm.
__device__ __forceinline__ uint32_t clock() {
  uint32_t cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
  return cycles;
}
__device__ __forceinline__ uint64_t clock64() {
  uint64_t cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}
// Nanoseconds, one clock for the whole GPU. It ticks in steps (32 ns to 1 us, by the driver).
__device__ __forceinline__ uint64_t globaltimer() {
  uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
  return nanoseconds;
}
// threadIdx.x, read anew at each use: what the compiler keeps of it would cost a register for ever.
__device__ __forceinline__ uint32_t tid_x() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
__device__ __forceinline__ uint32_t smid() {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

// Has the phase of this parity completed? Never suspends the thread.
__device__ __forceinline__ bool mbarrier_test_wait_parity(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}

}  // namespace hopgemm::ptx
