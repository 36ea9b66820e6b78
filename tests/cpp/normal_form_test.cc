// The normal form of a product, against the contract of api/gemm.h alone: every element of every operand is
// where the caller's strides say, whatever was merged, folded, exchanged or packed on the way.
#include "host/normal_form.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "check.h"

namespace hopgemm::test {
namespace {

// Addresses far from each other: nothing is read or written.
enum Place { kA = 1, kB, kC, kD, kBias };
const void* at(Place place, int64_t bytes = 0) {
  return reinterpret_cast<const void*>((uintptr_t{place} << 44) + bytes);
}
int64_t address(const void* data, int64_t index, DType dtype) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) + index * size_of(dtype);
}

Problem row_major(int64_t m, int64_t n, int64_t k) {
  Problem p;
  p.m = m, p.n = n, p.k = k;
  p.a = {at(kA), DType::kBF16, k, 1, {}};
  p.b = {at(kB), DType::kBF16, n, 1, {}};
  p.d = {at(kD), DType::kBF16, n, 1, {}};
  return p;
}
void add_batch(Problem& p, int64_t size, int64_t a, int64_t b, int64_t d) {
  p.batch[p.batch_dims] = size;
  p.a.batch_stride[p.batch_dims] = a;
  p.b.batch_stride[p.batch_dims] = b;
  p.d.batch_stride[p.batch_dims++] = d;
}

NormalProblem normal_of(const Problem& p) {
  NormalProblem q;
  const Status s = normalize(p, q);
  if (!CHECK(s.ok())) std::printf("  %s\n", s.message);
  return q;
}

// Refused, with a message that names all of `words`.
void check_refused(const Problem& p, std::initializer_list<const char*> words) {
  NormalProblem q;
  const Status s = normalize(p, q);
  CHECK(s.code == Code::kInvalidArgument);
  for (const char* word : words)
    if (!CHECK(std::strstr(s.message, word))) std::printf("  no '%s' in: %s\n", word, s.message);
}

// ---- what the kernel would touch --------------------------------------------------------------------------

// The element that the tensor map of tensor_map.cc (or, before it, the pack kernel) gives the kernel.
int64_t read(const NormalOperand& o, int64_t mn_size, int64_t mn, int64_t k, int64_t inner, int64_t outer) {
  const DType dtype = o.source.dtype;
  int64_t index = o.major == Major::kK ? mn * o.mn_stride + k : k * o.k_stride + mn;
  index += inner * o.batch_inner_stride + outer * o.batch_outer_stride;
  if (!o.pack) return address(o.data, index, dtype);
  CHECK((index + 1) * size_of(dtype) <= o.packed_bytes);
  const int64_t row = index / o.mn_stride;
  CHECK(index % o.mn_stride == k && row % mn_size == mn);
  int64_t batch = row / mn_size, from = mn * o.source.row_stride + k * o.source.col_stride;
  for (int i = o.source_batch_dims - 1; i >= 0; --i) {
    from += batch % o.source_batch[i] * o.source.batch_stride[i];
    batch /= o.source_batch[i];
  }
  CHECK(batch == 0);
  return address(o.source.data, from, dtype);
}

// What cuTensorMapEncodeTiled accepts: the base, and strides below 2^40 bytes, in units of 16 bytes.
bool is_legal_map(const void* data, int64_t outer_stride, int64_t inner_batch, int64_t outer_batch,
                  int64_t size) {
  auto legal = [&](int64_t stride) {
    return stride > 0 && stride * size % 16 == 0 && stride * size < int64_t{1} << 40;
  };
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && legal(outer_stride) &&
         (!inner_batch || legal(inner_batch)) && (!outer_batch || legal(outer_batch));
}
bool is_legal_map(const NormalOperand& o) {
  return is_legal_map(o.pack ? nullptr : o.data, o.major == Major::kK ? o.mn_stride : o.k_stride,
                      o.batch_inner_stride, o.batch_outer_stride, 2);
}

int64_t element(const EpilogueMatrix& x, int64_t m, int64_t n, int64_t inner, int64_t outer) {
  if (!x.data) return 0;
  return address(
      x.data,
      m * x.row_stride + n * x.col_stride + inner * x.batch_inner_stride + outer * x.batch_outer_stride,
      x.dtype);
}

// For each element of d: the addresses of c and bias, then of the factors of its sum.
using Sums = std::map<int64_t, std::vector<int64_t>>;

Sums sums_of(const NormalProblem& q) {
  Sums sums;
  for (int64_t outer = 0; outer < q.batch_outer; ++outer)
    for (int64_t inner = 0; inner < q.batch_inner; ++inner)
      for (int64_t m = 0; m < q.m; ++m)
        for (int64_t n = 0; n < q.n; ++n) {
          auto& sum = sums[element(q.epilogue.d, m, n, inner, outer)];
          sum.insert(sum.end(), {element(q.epilogue.c, m, n, inner, outer),
                                 element(q.epilogue.bias, m, n, inner, outer)});
          for (int64_t k = 0; k < q.k; ++k) {
            const int64_t a = read(q.a, q.m, m, k, inner, outer), b = read(q.b, q.n, n, k, inner, outer);
            sum.insert(sum.end(), {q.swapped ? b : a, q.swapped ? a : b});
          }
        }
  return sums;
}

Sums sums_of(const Problem& p) {
  Sums sums;
  int64_t products = 1;
  for (int i = 0; i < p.batch_dims; ++i) products *= p.batch[i];
  const bool summed = p.k > 0 && p.alpha != 0;
  for (int64_t product = 0; product < products; ++product) {
    auto index = [&](const int64_t* stride) {
      int64_t sum = 0, rest = product;
      for (int i = p.batch_dims - 1; i >= 0; rest /= p.batch[i--]) sum += rest % p.batch[i] * stride[i];
      return sum;
    };
    auto where = [&](const Matrix& x, int64_t row, int64_t col) {
      return address(x.data, row * x.row_stride + col * x.col_stride + index(x.batch_stride), x.dtype);
    };
    for (int64_t m = 0; m < p.m; ++m)
      for (int64_t n = 0; n < p.n; ++n) {
        auto& sum = sums[where(p.d, m, n)];
        sum.push_back(p.c.data && p.beta != 0 ? where(p.c, m, n) : 0);
        const Bias& bias = p.bias;
        sum.push_back(bias.data ? address(bias.data, n * bias.stride + index(bias.batch_stride), bias.dtype)
                                : 0);
        for (int64_t k = 0; summed && k < p.k; ++k)
          sum.insert(sum.end(), {where(p.a, m, k), where(p.b, k, n)});
      }
  }
  return sums;
}

void check_epilogue(const NormalProblem& q) {
  const EpilogueParams& e = q.epilogue;
  const int64_t size = size_of(e.d.dtype);
  CHECK(e.m == q.m && e.n == q.n && e.d.col_stride == 1);
  CHECK(e.scaled || (!e.c.data && !e.bias.data && e.alpha == 1));
  if (e.tma_columns == 0) return;
  CHECK(is_legal_map(e.d.data, e.d.row_stride, e.d.batch_inner_stride, e.d.batch_outer_stride, size));
  // A store that ends inside 16 bytes would write all of them.
  CHECK(e.tma_columns == (q.n * size % 16 == 0 ? INT32_MAX : q.n));
}

// The same products, at the same addresses.
void check_same(const Problem& p, const NormalProblem& q) {
  if (q.path == Path::kGemm) CHECK(is_legal_map(q.a) && is_legal_map(q.b));
  check_epilogue(q);
  CHECK(sums_of(p) == sums_of(q));
}

// ---- random problems --------------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine_); }
  bool one_in(int64_t n) { return below(n) == 0; }
  int64_t pick(std::initializer_list<int64_t> values) { return values.begin()[below(values.size())]; }

  // Strides of dimensions that lie in memory in a random order (`first` innermost where given), padded to a
  // multiple of `unit`; inputs may also broadcast or run backwards.
  std::vector<int64_t> strides(const std::vector<int64_t>& sizes, int first, int64_t unit, bool is_input) {
    std::vector<int> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    if (one_in(2)) std::shuffle(order.begin(), order.end() - 2, engine_);
    if (one_in(6)) std::shuffle(order.begin(), order.end(), engine_);
    order.erase(std::find(order.begin(), order.end(), first));
    std::vector<int64_t> strides(sizes.size());
    strides[first] = 1;
    int64_t next = (sizes[first] + unit - 1) / unit * unit;
    for (int i = static_cast<int>(order.size()) - 1; i >= 0; next *= sizes[order[i--]]) {
      if (one_in(5)) next += unit * pick({1, 2});
      strides[order[i]] = next;
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 1) strides[i] = pick({0, 1, 7, -3, int64_t{1} << 50});  // says nothing
      else if (is_input && one_in(i + 2 < sizes.size() ? 4 : 20)) strides[i] = 0;
      else if (is_input && one_in(20)) strides[i] = -strides[i];
    }
    return strides;
  }

 private:
  std::mt19937 engine_;
};

Matrix random_matrix(Random& r, const Problem& p, int64_t rows, int64_t cols, Place place, DType dtype) {
  std::vector<int64_t> sizes(p.batch, p.batch + p.batch_dims);
  sizes.insert(sizes.end(), {rows, cols});
  const int64_t unit = r.one_in(3) ? 1 : 16 / size_of(dtype);
  const auto s = r.strides(sizes, p.batch_dims + static_cast<int>(r.below(2)), unit, place != kD);
  Matrix x{at(place, r.one_in(6) ? size_of(dtype) * r.below(16) : 16 * r.below(3)),
           dtype,
           s[p.batch_dims],
           s[p.batch_dims + 1],
           {}};
  std::copy_n(s.begin(), p.batch_dims, x.batch_stride);
  return x;
}

Problem random_problem(Random& r) {
  Problem p;
  p.m = r.pick({1, 2, 3, 8, 16}), p.n = r.pick({1, 2, 3, 8, 16}), p.k = r.pick({0, 1, 2, 5, 8, 16});
  p.batch_dims = static_cast<int>(r.pick({0, 0, 1, 1, 2, 2, 3, 4, 6}));
  for (int i = 0; i < p.batch_dims; ++i)
    p.batch[i] = p.batch_dims > 3 ? r.pick({1, 2}) : r.pick({1, 2, 3, 4});
  const DType in = r.one_in(2) ? DType::kBF16 : DType::kF16;
  auto either = [&] { return r.one_in(2) ? DType::kF32 : in; };
  p.a = random_matrix(r, p, p.m, p.k, kA, in), p.b = random_matrix(r, p, p.k, p.n, kB, in);
  p.d = random_matrix(r, p, p.m, p.n, kD, either());
  p.alpha = static_cast<float>(r.pick({0, 1, 1, 1, 2})), p.beta = static_cast<float>(r.pick({0, 1}));
  if (r.one_in(3)) p.c = random_matrix(r, p, p.m, p.n, kC, either());
  if (r.one_in(9)) p.c = p.d;
  if (r.one_in(3)) {
    p.bias = {at(kBias), either(), r.pick({0, 1, 1, 3, -1}), {}};
    for (int i = 0; i < p.batch_dims; ++i) p.bias.batch_stride[i] = r.pick({0, 0, 64});
  }
  return p;
}

void check_random(int count) {
  int ran = 0, fills = 0, packs = 0, in_place = 0, swaps = 0, folds = 0, stores = 0, forced = 0, outer = 0;
  for (int seed = 0; seed < count; ++seed) {
    Random r(seed);
    const Problem p = random_problem(r);
    NormalProblem q;
    if (const Status s = normalize(p, q); !s.ok()) {  // two rules of out are all that may be broken here
      CHECK(std::strstr(s.message, "one of them must be 1") ||
            std::strstr(s.message, "batch dimensions; at most 2"));
      continue;
    }
    const int failed = failures;
    check_same(p, q);
    if (failures > failed)
      std::printf("  seed %d: m %ld, n %ld, k %ld, %d batch dimensions\n", seed, p.m, p.n, p.k, p.batch_dims);
    ++ran;
    fills += q.path == Path::kFill;
    packs += q.a.pack || q.b.pack;
    in_place += q.path == Path::kGemm && !q.a.pack && !q.b.pack;
    swaps += q.swapped, stores += q.epilogue.tma_columns > 0, outer += q.batch_outer > 1;
    folds += q.m > (q.swapped ? p.n : p.m);
    forced += q.a.pack && q.a.source_batch_dims > 2;
  }
  // Every way through was taken often enough to mean something.
  CHECK(ran > count * 6 / 10);
  for (int path : {packs, in_place, swaps, stores}) CHECK(path > count / 8);
  for (int path : {fills, folds, forced, outer}) CHECK(path > count / 60);
}

// ---- sizes no buffer of a test has ------------------------------------------------------------------------

// Offsets past 2^31 elements and 2^32 bytes, at the far corner.
void check_large() {
  const int64_t m = 70000, n = 50264, k = 65536;
  Problem p = row_major(m, n, k);
  add_batch(p, 3, m * k, k * n, m * n);
  const NormalProblem q = normal_of(p);
  CHECK(!q.a.pack && !q.b.pack && q.batch_inner == 3);
  CHECK(read(q.a, m, m - 1, k - 1, 2, 0) == address(p.a.data, 3 * m * k - 1, p.a.dtype));
  CHECK(read(q.b, n, n - 1, k - 1, 2, 0) == address(p.b.data, 3 * k * n - 1, p.b.dtype));
  CHECK(element(q.epilogue.d, m - 1, n - 1, 2, 0) == address(p.d.data, 3 * m * n - 1, p.d.dtype));
  p.a.row_stride = k + 1;  // the copy is past 2^32 bytes too
  p.a.batch_stride[0] = m * (k + 1);
  const NormalProblem packed = normal_of(p);
  CHECK(packed.a.pack && packed.a.packed_bytes == 3 * m * k * 2);
  CHECK(read(packed.a, m, m - 1, k - 1, 2, 0) == address(p.a.data, 3 * m * (k + 1) - 2, p.a.dtype));
  Problem far = row_major(2, 8, 8);  // 2^40 bytes are one too many for a tensor map
  far.a.row_stride = (int64_t{1} << 39) - 8;
  CHECK(!normal_of(far).a.pack);
  far.a.row_stride = int64_t{1} << 39;
  CHECK(normal_of(far).a.pack);
  check_same(far, normal_of(far));
}

// A batch that three broadcasts keep apart is copied, and one that lies in order is never.
void check_batches() {
  Problem p = row_major(4, 8, 8);
  for (int64_t i : {4, 3, 2}) add_batch(p, i, 0, 0, 0);
  for (Matrix* x : {&p.a, &p.b, &p.d}) {
    const int64_t rows = x == &p.b ? 8 : 4;
    int64_t stride = rows * 8;
    for (int i = 2; i >= 0; stride *= p.batch[i--]) x->batch_stride[i] = stride;
  }
  NormalProblem q = normal_of(p);
  CHECK(q.batch_inner == 24 && q.batch_outer == 1 && !q.a.pack && !q.b.pack);
  std::swap(p.a.batch_stride[0], p.a.batch_stride[2]);
  q = normal_of(p);
  CHECK(q.batch_inner == 24 && q.a.pack && q.b.pack);
  std::fill_n(p.b.batch_stride, 3, 0);  // B shared by all: copying it 24 times would be right, and absurd
  q = normal_of(p);
  CHECK(q.b.packed_bytes <= 8 * 8 * 2 + 256);
  for (int i = 2, stride = 32; i >= 0; stride *= p.batch[i--]) p.a.batch_stride[i] = stride;
  q = normal_of(p);
  CHECK(q.m == 4 * 24 && q.batch_inner == 1);  // folded into M
  Problem many = row_major(4, 8, 8);
  many.batch_dims = 7;
  check_refused(many, {"7 batch dimensions", "at most 6"});
}

}  // namespace
}  // namespace hopgemm::test

int main() {
  using namespace hopgemm::test;
  check_random(30000);
  check_large();
  check_batches();
  return report("normal_form_test");
}
