// Around the generated wgmma wrappers: fences, groups and shared-memory descriptors.
#pragma once
#include <cstdint>

#include "config/config.h"
#include "wgmma.gen.cuh"

namespace hopgemm::ptx {

// Registers and shared memory touched before are ready for the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending> __device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The compiler may not move a use of the register across this point (asm volatile alone orders no register).
__device__ __forceinline__ void fence_register(float& r) { asm volatile("" : "+f"(r)::"memory"); }

// Matrix descriptor (PTX ISA, "Matrix descriptor format"): address, leading and stride byte offsets in units
// of 16 bytes, the swizzle in bits 62-63 (1: 128 bytes, 2: 64). K-major: a stride of 8 rows; the leading
// offset is not used with a swizzle. MN-major: leading = from one chunk to the next, stride = 8 rows of K.
__device__ __forceinline__ uint64_t smem_descriptor(uint32_t address, Major major, int chunk = kChunkN) {
  const uint64_t swizzle = chunk == kChunkN ? 1ull << 62 : 2ull << 62;
  const uint64_t leading = major == Major::kK ? 1 : kTileK * chunk * 2 / 16;
  const uint64_t stride = 8 * chunk * 2 / 16;
  return swizzle | stride << 32 | leading << 16 | (address & 0x3FFFF) >> 4;
}
__device__ __forceinline__ constexpr uint32_t descriptor_units(int bytes) { return bytes / 16; }
// The same matrix further on, by one 32-bit addition: the address field reaches to 256 KB, and shared memory
// ends before, so that nothing is carried out of it.
__device__ __forceinline__ uint64_t advanced(uint64_t descriptor, uint32_t units) {
  return (descriptor & ~uint64_t{UINT32_MAX}) | (static_cast<uint32_t>(descriptor) + units);
}

}  // namespace hopgemm::ptx
