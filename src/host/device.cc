#include "host/device.h"

#include "host/measured.h"
#include "host/pack.h"
#include "host/tail.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>

namespace hopgemm {
namespace {

constexpr int kMaxDevices = 64;
constexpr int kMinDriver = 13000;  // what a CUDA 13 runtime and its cubins ask for: driver 580

// During a capture in global mode, CUDA refuses calls such as the loading of a module to every thread; for
// this thread alone, and as long as this lives, they are allowed: they touch no stream.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Only facts that were read are kept: a failure may pass.
struct CachedFacts {
  std::atomic<bool> known{false};
  std::mutex mutex;
  DeviceFacts facts;
};

// In steps of 50, as clocks are not read to the last digit. What does not tell its clocks is taken for an
// H200.
int dram_bytes_per_cycle(int device) {
  int memory_khz = 0, bits = 0, sm_khz = 0;
  if (cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device) ||
      cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device) ||
      cudaDeviceGetAttribute(&sm_khz, cudaDevAttrClockRate, device))
    cudaGetLastError();  // ours to report, not to leave behind
  if (memory_khz <= 0 || bits <= 0 || sm_khz <= 0) return DeviceFacts{}.dram_bytes_per_cycle;
  const double bytes = 2.0 * memory_khz * (bits / 8) / sm_khz;  // two a clock
  return std::max(1, static_cast<int>(std::lround(bytes / 50))) * 50;
}

Status read_facts(int device, DeviceFacts& f) {
  cudaDeviceProp properties;
  if (cudaError_t e = cudaGetDeviceProperties(&properties, device)) {
    cudaGetLastError();  // ours to report, not to leave behind
    return cuda_failure(e, "cudaGetDeviceProperties");
  }
  std::snprintf(f.name, sizeof f.name, "%.60s", properties.name);
  f.major = properties.major, f.minor = properties.minor;
  f.sm_count = properties.multiProcessorCount;
  f.max_smem_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  f.l2_bytes = properties.l2CacheSize;
  // The cost model was fitted with the default, and H200s report widths that make 2450 or 2500 of it: all of
  // them, and plans made without one, shall choose alike.
  if (!is_h200_sxm(f)) f.dram_bytes_per_cycle = dram_bytes_per_cycle(device);
  f.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  f.driver_version = driver_version();
  return {};
}

// What may run before and after a product: no call of gemm() loads anything once its config is prepared.
Status load_beside() {
  HOPGEMM_TRY(load_pack_and_fill());
  return load_add_tail();
}

Status load(const Instance& instance, int split, int& max_clusters) {
  const void* kernel = instance.kernel();
  RelaxedCapture relaxed;
  const int bytes = smem_bytes(instance.config), size = cluster_size(instance.config, split);
  if (cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) {
    cudaGetLastError();
    return cuda_failure(e, instance.name);
  }
  cudaLaunchConfig_t launch{};
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
  launch.gridDim = dim3(size), launch.blockDim = dim3(kNumThreads), launch.dynamicSmemBytes = bytes;
  launch.attrs = &cluster, launch.numAttrs = 1;
  if (cudaError_t e = cudaOccupancyMaxActiveClusters(&max_clusters, kernel, &launch)) {
    cudaGetLastError();
    return cuda_failure(e, instance.name);
  }
  return load_beside();
}

}  // namespace

Status cuda_failure(int error, const char* what) {
  return failure(Code::kCudaError, "hopgemm: %s: %s (%s)", what,
                 cudaGetErrorName(static_cast<cudaError_t>(error)),
                 cudaGetErrorString(static_cast<cudaError_t>(error)));
}

EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult result{};
    // The ABI of this function dates from CUDA 12.0.
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &result);
    if (e != cudaSuccess || result != cudaDriverEntryPointSuccess) {
      cudaGetLastError();
      p = nullptr;
    }
    return reinterpret_cast<EncodeTiled>(p);
  }();
  return function;
}

Status bind_context() {
  int device;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaSetDevice(device);
  if (e == cudaSuccess) return {};
  cudaGetLastError();
  return cuda_failure(e, "cudaSetDevice");
}

int driver_version() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return version;
}

int device_count() {
  int count = 0;
  if (driver_version() < kMinDriver || cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

DeviceFacts h200_facts() {
  DeviceFacts f;
  f.memory_bytes = int64_t{141} * 1000 * 1000 * 1000;
  f.driver_version = kMinDriver;
  return f;
}

Status device_facts(int device, DeviceFacts& facts) {
  static CachedFacts cache[kMaxDevices];
  const bool in_range = device >= 0 && device < kMaxDevices;
  if (in_range && cache[device].known.load(std::memory_order_acquire)) {
    facts = cache[device].facts;
    return {};
  }
  const int driver = driver_version();
  if (driver == 0)
    return failure(
        Code::kNoDevice,
        "hopgemm: no NVIDIA driver was found; the kernel needs driver 580 or newer and a GPU of compute"
        " capability 9.0. Multiply CPU tensors, or pass fallback=True");
  if (driver < kMinDriver)
    return failure(
        Code::kUnsupportedDevice,
        "hopgemm: the NVIDIA driver supports CUDA %d.%d; the kernel needs 13.0 (driver 580 or newer)."
        " Update the driver, or pass fallback=True or set HOPGEMM_FALLBACK=1 for the framework's own product",
        driver / 1000, driver % 1000 / 10);
  if (!in_range || device >= device_count())
    return failure(Code::kNoDevice, "hopgemm: there is no GPU %d; %d are visible", device, device_count());
  CachedFacts& c = cache[device];
  const std::lock_guard lock(c.mutex);
  if (!c.known.load(std::memory_order_relaxed)) {
    HOPGEMM_TRY(read_facts(device, c.facts));
    c.known.store(true, std::memory_order_release);
  }
  facts = c.facts;
  return {};
}

Status prepare(int device, const Instance& instance, int split, int& max_clusters) {
  // 0: not prepared yet; else resident clusters + 1. Two threads that meet here both prepare, with the same
  // result.
  static std::atomic<std::atomic<int>*> tables[kMaxDevices];
  if (device < 0 || device >= kMaxDevices)
    return failure(Code::kNoDevice, "hopgemm: there is no GPU %d", device);
  std::atomic<int>* table = tables[device].load(std::memory_order_acquire);
  if (!table) {
    auto fresh = std::make_unique<std::atomic<int>[]>(kNumInstances * (kMaxClusterSize + 1));
    if (tables[device].compare_exchange_strong(table, fresh.get(), std::memory_order_acq_rel))
      table = fresh.release();
  }
  std::atomic<int>& entry = table[(&instance - kInstances) * (kMaxClusterSize + 1) + split];
  int known = entry.load(std::memory_order_acquire);
  if (known == 0) {
    HOPGEMM_TRY(load(instance, split, max_clusters));
    known = max_clusters + 1;
    entry.store(known, std::memory_order_release);
  }
  max_clusters = known - 1;
  return {};
}

Status warmup() {
  int device;
  if (cudaError_t e = cudaGetDevice(&device)) {
    cudaGetLastError();
    return cuda_failure(e, "cudaGetDevice");
  }
  for (int i = 0, clusters; i < kNumInstances; ++i) HOPGEMM_TRY(prepare(device, kInstances[i], 1, clusters));
  return {};
}

}  // namespace hopgemm
