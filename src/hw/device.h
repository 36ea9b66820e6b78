// The function markers that let one source be CUDA device code and plain C++.
#pragma once

#ifdef __CUDACC__
#define HOPGEMM_DEVICE __device__ __forceinline__
#define HOPGEMM_HOST_DEVICE __host__ __device__ __forceinline__
#define HOPGEMM_UNROLL _Pragma("unroll")
#define HOPGEMM_NO_UNROLL _Pragma("unroll 1")
#else
#define HOPGEMM_DEVICE inline
#define HOPGEMM_HOST_DEVICE inline
#define HOPGEMM_UNROLL
#define HOPGEMM_NO_UNROLL
#endif
