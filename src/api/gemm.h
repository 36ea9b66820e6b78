// The whole public C++ surface of hopgemm: describe a product, plan it, run it.
//
//   Problem p{...};
//   Plan plan;
//   if (Status s = make_plan(p, "", facts, plan); !s.ok()) ...   // pure: shapes, strides and alignments only
//   if (Status s = gemm(p, plan, workspace, stream); !s.ok()) ...  // enqueues, never synchronizes, never
//   allocates
//
// No exception crosses this header, every function is thread-safe, nothing here needs a CUDA header.
#pragma once
#include <cstdint>
#include <cstdio>

#define HOPGEMM_API __attribute__((visibility("default")))

namespace hopgemm {

inline constexpr int kMaxBatchDims = 6;
inline constexpr int kMaxConfigName = 128;
// What the sums of a tail may take of the workspace, unless a config with more is asked for by name.
inline constexpr int64_t kMaxSumsBytes = 32 << 20;

enum class DType : int32_t { kF16, kBF16, kF32 };
constexpr int64_t size_of(DType t) { return t == DType::kF32 ? 4 : 2; }
constexpr const char* name_of(DType t) {
  return t == DType::kF16 ? "float16" : t == DType::kBF16 ? "bfloat16" : "float32";
}

// A strided (batch..., rows, cols) view of device memory. All strides count elements; any value is legal, 0
// broadcasts.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_stride[kMaxBatchDims] = {};  // outermost first, `Problem::batch_dims` of them
};

// N values added to every row. data == nullptr: none.
struct Bias {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t stride = 1;
  int64_t batch_stride[kMaxBatchDims] = {};
};

// d = alpha * a @ b + beta * c + bias, summed in fp32 and rounded once.
// a: m x k, b: k x n (one 16-bit dtype for both); c, d: m x n; c, bias and d of a's dtype or fp32, each on
// its own. beta == 0 never reads c; alpha == 0 never reads a and b. c may be d itself (same strides), nothing
// else may overlap d.
struct Problem {
  int64_t m = 0, n = 0, k = 0;
  int batch_dims = 0;  // 0: one product
  int64_t batch[kMaxBatchDims] = {};  // outermost first
  Matrix a, b, c, d;  // d.data is written
  Bias bias;
  float alpha = 1.0f, beta = 0.0f;
  bool batch_invariant =
      false;  // a row's bits depend on neither m, its position, its batch nor its neighbours
  int sm_limit = 0;  // at most so many SMs; 0: all
};

enum class Code : int32_t {
  kOk,
  kInvalidArgument,  // the caller's argument breaks a rule: Python ValueError
  kUnsupportedDevice,  // not compute capability 9.0, or the driver is too old
  kNoDevice,  // no driver or no GPU
  kCudaError,  // a CUDA call failed
};

// A message names the argument, the value found, the rule, and the way out.
struct Status {
  Code code = Code::kOk;
  char message[384];
  Status() { message[0] = '\0'; }  // the rest is not worth a call's time
  bool ok() const { return code == Code::kOk; }
};

// What a plan needs to know of the chip.
struct DeviceFacts {
  char name[64] = "NVIDIA H200";
  int major = 9, minor = 0;
  int sm_count = 132;
  int max_smem_bytes = 232448;  // shared memory one CTA may have
  int64_t l2_bytes = 62914560;
  int dram_bytes_per_cycle = 2500;  // what the memory's pins carry in a cycle of the SMs' highest clock
  int64_t memory_bytes = 0;
  int driver_version = 0;  // 13000: CUDA 13.0; 0: none
};

enum class Path : int32_t {
  kEmpty,  // m, n or the batch is 0: nothing is launched
  kFill,  // k or alpha is 0: d = beta * c + bias
  kGemm,  // the kernel, after packing what TMA cannot read
};
// How the result leaves shared memory; with kTma the ragged end of a row (not a multiple of 16 bytes) still
// leaves directly.
enum class Store : int32_t { kTma, kDirect };

// What would run, and why. Plain data: copy it, keep it, compare it.
struct Plan {
  Path path = Path::kEmpty;
  char config[kMaxConfigName] = "";  // name of the instance and its schedule, parseable
  char reason[160] = "";  // who chose the config, and why
  char majors[3] = "";  // as the kernel reads them, after packing: "kk", "kn", "mk", "mn"
  bool pack_a = false, pack_b = false;  // copied into a padded K-major workspace first
  bool swapped = false;  // computed as the transposed product
  Store store = Store::kTma;
  int64_t tiles = 0;  // output tiles (of one CTA), all batches
  int grid = 0;  // CTAs (before the device's limit of resident clusters)
  double waves = 0;  // tiles / CTAs
  int launches = 1;  // of the kernel, one after the other (as `grid`: more where fewer clusters are resident)
  bool slower = false;  // than cuBLAS was measured to be (host/slower.h); never of a config asked for by name
  int64_t workspace_bytes = 0;  // device memory that gemm() needs, 16-byte aligned
  int64_t sums_bytes = 0;  // of the workspace, for the sums of a tail's parts
  double flops = 0;  // 2 m n k, all batches
  double bytes = 0;  // each operand once, the result once
};

// Facts of a visible device (cached, never initializes more than the driver), or those of an H200 SXM for
// planning anywhere.
HOPGEMM_API Status device_facts(int device, DeviceFacts& facts);
HOPGEMM_API DeviceFacts h200_facts();
HOPGEMM_API int device_count();  // 0 without a driver
HOPGEMM_API int driver_version();  // 0 without a driver

// Validates, normalizes and selects. Pointers are only looked at for their alignment and overlap. `config`:
// "" or "auto" asks select(); a name asks for exactly that instance (kInvalidArgument where it cannot run
// this problem).
HOPGEMM_API Status make_plan(const Problem& problem, const char* config, const DeviceFacts& facts,
                             Plan& plan);

// For who has `workspace_bytes` and no more: where an automatic choice needs more for the sums of a tail, the
// plan without one, of other bits. Copies of operands stay as they are.
inline Status fit_plan(Problem problem, const DeviceFacts& facts, int64_t workspace_bytes, Plan& plan) {
  if (plan.sums_bytes == 0 || plan.workspace_bytes <= workspace_bytes) return {};
  problem.batch_invariant = true;
  return make_plan(problem, "", facts, plan);
}

// Enqueues the planned product on `stream` (a cudaStream_t) of the current device. Legal inside a stream
// capture, the first call of a process included.
HOPGEMM_API Status gemm(const Problem& problem, const Plan& plan, void* workspace, void* stream);

// Loads every kernel onto the current device, so that no later call has to.
HOPGEMM_API Status warmup();

// Names of the compiled instances, in a fixed order; nullptr past the end.
HOPGEMM_API const char* config_name(int index);

}  // namespace hopgemm
