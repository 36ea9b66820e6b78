#include "host/normal_form.h"

#include <algorithm>
#include <cinttypes>

#include "host/status.h"

namespace hopgemm {
namespace {

constexpr int64_t kMaxExtent = INT32_MAX - 1024;  // TMA coordinates are 32-bit, tiles may reach past the edge
constexpr int64_t kMaxStrideBytes = int64_t{1} << 40;  // of a tensor map
constexpr int kTmaBytes = 16;  // its alignment of addresses and strides

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
bool aligned(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

// ---- batches
// --------------------------------------------------------------------------------------------------------

bool can_merge(const Problem& p, int outer) {
  const int64_t inner_size = p.batch[outer + 1];
  for (const Matrix* x : {&p.a, &p.b, &p.d, &p.c}) {
    if (x->data == nullptr && x == &p.c) continue;
    if (x->batch_stride[outer] != x->batch_stride[outer + 1] * inner_size) return false;
  }
  return !p.bias.data || p.bias.batch_stride[outer] == p.bias.batch_stride[outer + 1] * inner_size;
}

void remove_dim(Problem& p, int dim) {
  auto shift = [&](int64_t* x) { std::copy(x + dim + 1, x + p.batch_dims, x + dim); };
  shift(p.batch);
  for (Matrix* x : {&p.a, &p.b, &p.c, &p.d}) shift(x->batch_stride);
  shift(p.bias.batch_stride);
  --p.batch_dims;
}

void merge_batches(Problem& p) {
  for (int i = p.batch_dims - 1; i >= 0; --i)
    if (p.batch[i] == 1) remove_dim(p, i);
  for (int i = p.batch_dims - 2; i >= 0; --i) {
    if (!can_merge(p, i)) continue;
    p.batch[i + 1] *= p.batch[i];
    remove_dim(p, i);  // the inner one's strides are those of the merged dimension
  }
}

// A batch that shares B is more rows of A.
void fold_into_m(Problem& p) {
  while (p.batch_dims > 0) {
    const int last = p.batch_dims - 1;
    // With one row per batch any batch stride is a row stride.
    auto rows_follow = [&](const Matrix& x) {
      return p.m == 1 || x.batch_stride[last] == p.m * x.row_stride;
    };
    const bool fold = p.b.batch_stride[last] == 0 && p.batch[last] * p.m <= kMaxExtent && rows_follow(p.a) &&
                      rows_follow(p.d) && (!p.c.data || rows_follow(p.c)) &&
                      (!p.bias.data || p.bias.batch_stride[last] == 0);
    if (!fold) return;
    if (p.m == 1)
      for (Matrix* x : {&p.a, &p.c, &p.d}) x->row_stride = x->batch_stride[last];
    p.m *= p.batch[last];
    remove_dim(p, last);
  }
}

Matrix transposed(Matrix x) {
  std::swap(x.row_stride, x.col_stride);
  return x;
}

// ---- checks
// ---------------------------------------------------------------------------------------------------------

Status check_sizes(const Problem& p) {
  const struct {
    const char* name;
    int64_t size;
  } sizes[] = {{"M", p.m}, {"N", p.n}, {"K", p.k}};
  for (const auto& s : sizes) {
    if (s.size < 0 || s.size > kMaxExtent)
      return failure(Code::kInvalidArgument,
                     "hopgemm: %s is %" PRId64 "; it must be from 0 to %" PRId64
                     ". Split the product along %s",
                     s.name, s.size, kMaxExtent, s.name);
  }
  if (p.batch_dims < 0 || p.batch_dims > kMaxBatchDims)
    return failure(Code::kInvalidArgument,
                   "hopgemm: %d batch dimensions; at most %d are taken. Reshape them into fewer",
                   p.batch_dims, kMaxBatchDims);
  for (int i = 0; i < p.batch_dims; ++i)
    if (p.batch[i] < 0)
      return failure(Code::kInvalidArgument, "hopgemm: batch dimension %d is %" PRId64 ", below 0", i,
                     p.batch[i]);
  return {};
}

Status check_types(const Problem& p) {
  if (p.a.dtype == DType::kF32 || p.b.dtype == DType::kF32)
    return failure(Code::kInvalidArgument,
                   "hopgemm: a is %s, b is %s; supported: bfloat16, float16. Cast them first",
                   name_of(p.a.dtype), name_of(p.b.dtype));
  if (p.a.dtype != p.b.dtype)
    return failure(Code::kInvalidArgument,
                   "hopgemm: a is %s, b is %s; both must have one dtype. Cast one of them",
                   name_of(p.a.dtype), name_of(p.b.dtype));
  if (p.d.dtype != p.a.dtype && p.d.dtype != DType::kF32)
    return failure(Code::kInvalidArgument,
                   "hopgemm: the result (out_dtype) is %s; with %s operands it may be %s or float32. Cast "
                   "the result instead",
                   name_of(p.d.dtype), name_of(p.a.dtype), name_of(p.a.dtype));
  const struct {
    const char* name;
    const void* data;
    DType dtype;
  } addends[] = {{"c", p.c.data, p.c.dtype}, {"bias", p.bias.data, p.bias.dtype}};
  for (const auto& x : addends) {
    if (x.data && x.dtype != p.a.dtype && x.dtype != DType::kF32)
      return failure(Code::kInvalidArgument,
                     "hopgemm: %s is %s; with %s operands it may be %s or float32. Cast it", x.name,
                     name_of(x.dtype), name_of(p.a.dtype), name_of(p.a.dtype));
  }
  const struct {
    const char* name;
    const void* data;
    DType dtype;
  } bases[] = {{"a", p.a.data, p.a.dtype},
               {"b", p.b.data, p.b.dtype},
               {"c", p.c.data, p.c.dtype},
               {"bias", p.bias.data, p.bias.dtype},
               {"out", p.d.data, p.d.dtype}};
  for (const auto& x : bases) {
    if (!aligned(x.data, size_of(x.dtype)))
      return failure(Code::kInvalidArgument,
                     "hopgemm: the address of %s, %p, is not a multiple of its element size %d. Copy it",
                     x.name, x.data, static_cast<int>(size_of(x.dtype)));
  }
  return {};
}

struct Extent {  // [begin, end) in bytes
  uintptr_t begin, end;
};

Extent extent_of(const Problem& p, const Matrix& x, int64_t rows, int64_t cols) {
  int64_t low = 0, high = 0;
  auto add = [&](int64_t size, int64_t stride) { (stride < 0 ? low : high) += (size - 1) * stride; };
  add(rows, x.row_stride);
  add(cols, x.col_stride);
  for (int i = 0; i < p.batch_dims; ++i) add(p.batch[i], x.batch_stride[i]);
  const uintptr_t base = reinterpret_cast<uintptr_t>(x.data);
  return {base + low * size_of(x.dtype), base + (high + 1) * size_of(x.dtype)};
}

// Column slices of one buffer lie between each other's rows without touching.
bool interleaved(const Problem& p, const Matrix& x, int64_t x_cols, const Matrix& y, int64_t y_cols) {
  const int64_t pitch = x.row_stride * size_of(x.dtype);
  if (x.col_stride != 1 || y.col_stride != 1 || pitch <= 0 || pitch != y.row_stride * size_of(y.dtype))
    return false;
  for (int i = 0; i < p.batch_dims; ++i)
    if (x.batch_stride[i] * size_of(x.dtype) % pitch || y.batch_stride[i] * size_of(y.dtype) % pitch)
      return false;
  const int64_t difference = reinterpret_cast<intptr_t>(y.data) - reinterpret_cast<intptr_t>(x.data);
  const int64_t offset = (difference % pitch + pitch) % pitch;
  return offset >= x_cols * size_of(x.dtype) && offset + y_cols * size_of(y.dtype) <= pitch;
}

// Are the elements of x where those of d are? The stride of a dimension of size 1 says nothing.
bool same_place(const Problem& p, const Matrix& x) {
  bool same = (p.m == 1 || x.row_stride == p.d.row_stride) && (p.n == 1 || x.col_stride == p.d.col_stride);
  for (int i = 0; i < p.batch_dims; ++i) same &= p.batch[i] == 1 || x.batch_stride[i] == p.d.batch_stride[i];
  return same;
}

// d may be written by many threads in any order: its elements must be distinct, and nobody else's.
Status check_overlap(const Problem& p) {
  struct Dim {
    int64_t size, stride;
  } dims[kMaxBatchDims + 2];
  int count = 0;
  dims[count++] = {p.m, p.d.row_stride};
  dims[count++] = {p.n, p.d.col_stride};
  for (int i = 0; i < p.batch_dims; ++i) dims[count++] = {p.batch[i], p.d.batch_stride[i]};
  std::sort(dims, dims + count,
            [](const Dim& x, const Dim& y) { return std::abs(x.stride) < std::abs(y.stride); });
  int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    if (dims[i].size == 1) continue;
    if (std::abs(dims[i].stride) <= reach)
      return failure(Code::kInvalidArgument,
                     "hopgemm: out overlaps itself (a dimension of size %" PRId64 " has stride %" PRId64
                     "). Give an out with distinct elements",
                     dims[i].size, dims[i].stride);
    reach += (dims[i].size - 1) * std::abs(dims[i].stride);
  }
  const Extent d = extent_of(p, p.d, p.m, p.n);
  const struct {
    const char* name;
    const Matrix* x;
    int64_t rows, cols;
  } inputs[] = {{"a", &p.a, p.m, p.k}, {"b", &p.b, p.k, p.n}, {"c", &p.c, p.m, p.n}};
  for (const auto& in : inputs) {
    const Matrix& x = *in.x;
    if (!x.data) continue;
    if (&x == &p.c && x.data == p.d.data && x.dtype == p.d.dtype && same_place(p, x)) continue;
    const Extent e = extent_of(p, x, in.rows, in.cols);
    if (e.begin < d.end && d.begin < e.end && !interleaved(p, p.d, p.n, x, in.cols))
      return failure(Code::kInvalidArgument,
                     "hopgemm: out overlaps %s in memory. Give another out, or a copy of %s", in.name,
                     in.name);
  }
  if (p.bias.data) {
    Matrix bias{p.bias.data, p.bias.dtype, 0, p.bias.stride, {}};
    std::copy(p.bias.batch_stride, p.bias.batch_stride + p.batch_dims, bias.batch_stride);
    const Extent e = extent_of(p, bias, 1, p.n);
    if (e.begin < d.end && d.begin < e.end)
      return failure(Code::kInvalidArgument,
                     "hopgemm: out overlaps bias in memory. Give another out, or a copy of bias");
  }
  return {};
}

// ---- operands
// -------------------------------------------------------------------------------------------------------

// Can a tensor map describe it, `inner` being the unit-stride dimension?
bool tma_reads(const Problem& p, const Matrix& x, int64_t inner, int64_t inner_stride, int64_t outer,
               int64_t outer_stride) {
  auto legal = [&](int64_t stride) {
    return stride > 0 && stride * size_of(x.dtype) % kTmaBytes == 0 &&
           stride * size_of(x.dtype) < kMaxStrideBytes;
  };
  if (!aligned(x.data, kTmaBytes) || (inner != 1 && inner_stride != 1)) return false;
  if (outer != 1 && (!legal(outer_stride) || outer_stride < inner)) return false;
  for (int i = 0; i < p.batch_dims; ++i)
    if (x.batch_stride[i] != 0 && !legal(x.batch_stride[i])) return false;
  return true;
}

// `x` is mn x k. At most two batch dimensions are left, unless `force_pack`.
NormalOperand make_operand(const Problem& p, const Matrix& x, int64_t mn, bool force_pack) {
  NormalOperand o{};
  o.data = x.data;
  o.source = x;
  const bool k_major = tma_reads(p, x, p.k, x.col_stride, mn, x.row_stride);
  const bool mn_major = tma_reads(p, x, mn, x.row_stride, p.k, x.col_stride);
  o.pack = force_pack || !(k_major || mn_major);
  if (o.pack) {
    o.major = Major::kK;
    o.mn_stride = round_up(p.k, kTmaBytes / size_of(x.dtype));
    o.k_stride = 1;
    int64_t copies = 1;
    for (int i = p.batch_dims - 1; i >= 0; --i) {
      if (!force_pack && x.batch_stride[i] == 0) continue;  // broadcast stays broadcast
      o.source_batch[i] = p.batch[i];
      (i == p.batch_dims - 1 ? o.batch_inner_stride : o.batch_outer_stride) = copies * mn * o.mn_stride;
      copies *= p.batch[i];
    }
    o.source_batch_dims = p.batch_dims;
    for (int i = 0; i < p.batch_dims; ++i) o.source_batch[i] = std::max<int64_t>(o.source_batch[i], 1);
    o.packed_bytes = round_up(copies * mn * o.mn_stride * size_of(x.dtype), 256);
    return o;
  }
  o.major = k_major ? Major::kK : Major::kMN;
  // The stride of a dimension of size 1 is anything; a tensor map wants a legal one.
  o.mn_stride = k_major && mn == 1 ? round_up(p.k, 8) : x.row_stride;
  o.k_stride = !k_major && p.k == 1 ? round_up(mn, 8) : x.col_stride;
  if (p.batch_dims > 0) o.batch_inner_stride = x.batch_stride[p.batch_dims - 1];
  if (p.batch_dims > 1) o.batch_outer_stride = x.batch_stride[p.batch_dims - 2];
  return o;
}

EpilogueMatrix make_epilogue_matrix(const Problem& p, const void* data, DType dtype, int64_t row, int64_t col,
                                    const int64_t* batch) {
  return {data,
          row,
          col,
          p.batch_dims > 0 ? batch[p.batch_dims - 1] : 0,
          p.batch_dims > 1 ? batch[p.batch_dims - 2] : 0,
          dtype};
}

bool tma_writes(const EpilogueMatrix& d, int64_t m) {
  auto legal = [&](int64_t stride) {
    return stride >= 0 && stride * size_of(d.dtype) % kTmaBytes == 0 &&
           stride * size_of(d.dtype) < kMaxStrideBytes;
  };
  return aligned(d.data, kTmaBytes) && (m == 1 || legal(d.row_stride)) && legal(d.batch_inner_stride) &&
         legal(d.batch_outer_stride);
}

bool is_shared(const Problem& p, const Matrix& x) {  // by all products of the batch
  return std::all_of(x.batch_stride, x.batch_stride + p.batch_dims,
                     [](int64_t stride) { return stride == 0; });
}

// More than two batch dimensions are left: operands that differ from product to product are packed, batch
// after batch, which leaves it to d, c and bias.
void force_packed_strides(Problem& p) {
  int64_t follow = 1;  // any unit will do: only the ratios count
  const bool a_shared = is_shared(p, p.a), b_shared = is_shared(p, p.b);
  for (int i = p.batch_dims - 1; i >= 0; follow *= p.batch[i--]) {
    if (!a_shared) p.a.batch_stride[i] = follow;
    if (!b_shared) p.b.batch_stride[i] = follow;
  }
}

}  // namespace

Status normalize(const Problem& problem, NormalProblem& normal) {
  HOPGEMM_TRY(check_sizes(problem));
  Problem p = problem;
  if (p.beta == 0.0f) p.c.data = nullptr;
  HOPGEMM_TRY(check_types(p));
  normal = {};
  bool empty = p.m == 0 || p.n == 0;
  for (int i = 0; i < p.batch_dims; ++i) empty |= p.batch[i] == 0;
  if (empty) {
    normal.path = Path::kEmpty;
    return {};
  }
  if (!p.d.data)
    return failure(Code::kInvalidArgument,
                   "hopgemm: out has no memory; %" PRId64 " x %" PRId64 " elements are written", p.m, p.n);
  if (p.k > 0 && p.alpha != 0.0f && (!p.a.data || !p.b.data))
    return failure(Code::kInvalidArgument, "hopgemm: %s has no memory, and K is %" PRId64,
                   p.a.data ? "b" : "a", p.k);
  if (p.k == 0 || p.alpha == 0.0f) {
    p.k = 0;
    p.a.data = p.b.data = nullptr;  // never read; their strides say nothing
    p.a.row_stride = 0;
    std::fill_n(p.a.batch_stride, kMaxBatchDims, 0);
    std::fill_n(p.b.batch_stride, kMaxBatchDims, 0);
  }
  HOPGEMM_TRY(check_overlap(p));
  if (p.m == 1) p.d.row_stride = p.n;
  if (p.n == 1) p.d.col_stride = 1;

  Matrix row_bias{p.bias.data, p.bias.dtype, 0, p.bias.stride, {}};
  if (p.d.col_stride != 1) {
    if (p.d.row_stride != 1 && p.m != 1)
      return failure(Code::kInvalidArgument,
                     "hopgemm: out has strides (%" PRId64 ", %" PRId64
                     "); one of them must be 1. Write to a contiguous out and copy",
                     p.d.row_stride, p.d.col_stride);
    normal.swapped = true;
    std::swap(p.m, p.n);
    const Matrix a = p.a;
    p.a = transposed(p.b), p.b = transposed(a), p.c = transposed(p.c), p.d = transposed(p.d);
    row_bias = transposed(row_bias);
    if (p.n == 1) p.d.col_stride = 1;
  }
  if (p.m == 1) p.d.row_stride = round_up(p.n, kTmaBytes);
  merge_batches(p);
  if (!(normal.swapped && p.bias.data)) fold_into_m(p);  // a bias over rows would have to repeat

  const Problem unpacked = p;  // what pack() reads
  const bool force_pack = p.batch_dims > 2;
  if (force_pack) {
    force_packed_strides(p);
    merge_batches(p);
    if (p.batch_dims > 2)
      return failure(Code::kInvalidArgument,
                     "hopgemm: the batch strides of out, c and bias leave %d batch dimensions; at most 2 are "
                     "taken. Make them contiguous",
                     p.batch_dims);
  }
  normal.path = p.k == 0 ? Path::kFill : Path::kGemm;
  normal.m = p.m, normal.n = p.n, normal.k = p.k;
  normal.batch_inner = p.batch_dims > 0 ? p.batch[p.batch_dims - 1] : 1;
  normal.batch_outer = p.batch_dims > 1 ? p.batch[p.batch_dims - 2] : 1;
  if (normal.batch_inner > kMaxExtent || normal.batch_outer > kMaxExtent)
    return failure(Code::kInvalidArgument,
                   "hopgemm: a batch of %" PRId64 " products; at most %" PRId64 ". Split it",
                   std::max(normal.batch_inner, normal.batch_outer), kMaxExtent);
  if (p.k > 0) {
    normal.a = make_operand(unpacked, unpacked.a, p.m, force_pack && !is_shared(unpacked, unpacked.a));
    normal.b =
        make_operand(unpacked, transposed(unpacked.b), p.n, force_pack && !is_shared(unpacked, unpacked.b));
    if (force_pack) {  // the copies follow each other in the order of the merged batch
      for (NormalOperand* o : {&normal.a, &normal.b}) {
        if (is_shared(unpacked, o == &normal.a ? unpacked.a : unpacked.b)) continue;
        o->batch_inner_stride = (o == &normal.a ? p.m : p.n) * o->mn_stride;
        o->batch_outer_stride = o->batch_inner_stride * normal.batch_inner;
      }
    }
  }
  EpilogueParams& e = normal.epilogue;
  e.alpha = p.alpha, e.beta = p.beta;
  e.scaled = p.alpha != 1.0f || p.c.data || p.bias.data;
  e.m = static_cast<int>(p.m), e.n = static_cast<int>(p.n);
  e.c = make_epilogue_matrix(p, p.c.data, p.c.dtype, p.c.row_stride, p.c.col_stride, p.c.batch_stride);
  e.bias = make_epilogue_matrix(p, p.bias.data, p.bias.dtype, row_bias.row_stride, row_bias.col_stride,
                                p.bias.batch_stride);
  e.d = make_epilogue_matrix(p, p.d.data, p.d.dtype, p.d.row_stride, 1, p.d.batch_stride);
  // HAZARD: a TMA store writes 16 bytes at a time, also where the row ends inside them (measured: with N =
  // 257 the seven elements behind each row are overwritten). So the piece that holds a ragged end leaves by
  // plain stores.
  const bool ragged = p.n * size_of(e.d.dtype) % kTmaBytes != 0;
  e.tma_columns = !tma_writes(e.d, p.m) ? 0 : ragged ? e.n : INT32_MAX;
  return {};
}

}  // namespace hopgemm
