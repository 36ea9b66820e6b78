#include "emulator_case.h"

#include <cmath>
#include <cstdio>

#include "host/swap.h"
#include "host/tail.h"

namespace hopgemm::test {
namespace {

constexpr int kPad = 64;  // elements before and after everything, a multiple of TMA's alignment
constexpr uint8_t kCanary = 0xFF;

int round_up(int x, int to) { return (x + to - 1) / to * to; }

}  // namespace

std::string Case::describe() const {
  char text[256];
  std::snprintf(
      text, sizeof text,
      "m %d n %d k %d batch %d%s%s out %s store %s%s%s alpha %g ctas %d %c%d k_period %d split %d tail %dx%d",
      m, n, k, batch, share_a ? " shared a" : "", share_b ? " shared b" : "", name_of(out),
      store == Store::kTma ? "tma" : "direct", c ? " c" : "", bias ? " bias" : "", static_cast<double>(alpha),
      num_ctas, schedule.along_m ? 'm' : 'n', schedule.group, schedule.k_period, schedule.split,
      schedule.tail, schedule.ranges);
  return text;
}

Product::Product(const KernelConfig& config, const Case& c, uint64_t data_seed)
    : config_(config),
      called_(as_called(config)),
      case_(c) {
  emulated::Random random(data_seed);
  const bool a_k = called_.a_major == Major::kK, b_k = called_.b_major == Major::kK;
  a_ = make_operand(a_k ? c.m : c.k, a_k ? c.k : c.m, c.share_a ? 1 : c.batch, random);
  b_ = make_operand(b_k ? c.n : c.k, b_k ? c.k : c.n, c.share_b ? 1 : c.batch, random);
  // The direct store is for rows that TMA cannot address.
  d_ld_ = c.store == Store::kTma ? round_up(c.n, 8) + 8 : c.n | 1;
  d_batch_stride_ = d_ld_ * c.m + (c.store == Store::kTma ? 8 * d_ld_ : 3);
  d_.resize((2 * kPad + c.batch * d_batch_stride_) * size_of(c.out));
  if (c.c) c_.resize(d_.size() / size_of(c.out));
  if (c.bias) bias_.resize(c.n);
  for (float& x : c_) x = static_cast<float>(random.below(9) - 4);
  for (float& x : bias_) x = static_cast<float>(random.below(9) - 4);
  expect();
}

Product::Operand Product::make_operand(int rows, int cols, int copies, emulated::Random& random) {
  Operand x;
  x.ld = round_up(cols, 8) + 8;
  x.batch_stride = x.ld * rows + 64;
  x.start = kPad;
  x.memory.assign(2 * kPad + copies * x.batch_stride, 0xFFFF);
  for (int copy = 0; copy < copies; ++copy)
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < cols; ++j)
        x.memory[x.start + copy * x.batch_stride + i * x.ld + j] =
            emulated::round_to(config_.dtype, static_cast<float>(random.below(5) - 2));
  return x;
}

float Product::at(const Operand& x, Major major, int batch, int mn, int k) const {
  const int64_t row = major == Major::kK ? mn : k, col = major == Major::kK ? k : mn;
  return emulated::to_float(config_.dtype, x.memory[x.start + batch * x.batch_stride + row * x.ld + col]);
}

void Product::expect() {
  const Case& c = case_;
  expected_.assign(d_.size(), kCanary);
  std::vector<float> sums(c.n), b(c.n * c.k);
  for (int batch = 0; batch < c.batch; ++batch) {
    for (int k = 0; k < c.k; ++k)
      for (int n = 0; n < c.n; ++n) b[k * c.n + n] = at(b_, called_.b_major, c.share_b ? 0 : batch, n, k);
    for (int m = 0; m < c.m; ++m) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int k = 0; k < c.k; ++k) {
        const float a = at(a_, called_.a_major, c.share_a ? 0 : batch, m, k);
        for (int n = 0; n < c.n; ++n) sums[n] += a * b[k * c.n + n];
      }
      for (int n = 0; n < c.n; ++n) {
        const int64_t index = kPad + batch * d_batch_stride_ + m * d_ld_ + n;
        float value = c.alpha * sums[n];  // no zero is added where there is nothing to add: -0 stays -0
        if (c.c) value += 2 * c_[index];
        if (c.bias) value += bias_[n];
        const uint16_t bits = emulated::round_to(c.out, value);
        if (c.out == DType::kF32) std::memcpy(&expected_[index * 4], &value, 4);
        else std::memcpy(&expected_[index * 2], &bits, 2);
      }
    }
  }
}

std::string Product::run(Kernel kernel, uint64_t seed, std::vector<emulated::Event>* events) {
  const Case& c = case_;
  std::fill(d_.begin(), d_.end(), kCanary);
  Problem p;
  p.m = c.m, p.n = c.n, p.k = c.k;
  p.batch_dims = 1;
  p.batch[0] = c.batch;
  const bool a_k = called_.a_major == Major::kK, b_k = called_.b_major == Major::kK;
  p.a = {a_.memory.data() + a_.start,
         config_.dtype,
         a_k ? a_.ld : 1,
         a_k ? 1 : a_.ld,
         {c.share_a ? 0 : a_.batch_stride}};
  p.b = {b_.memory.data() + b_.start,
         config_.dtype,
         b_k ? 1 : b_.ld,
         b_k ? b_.ld : 1,
         {c.share_b ? 0 : b_.batch_stride}};
  p.d = {d_.data() + kPad * size_of(c.out), c.out, d_ld_, 1, {d_batch_stride_}};
  if (c.c) p.c = {c_.data() + kPad, DType::kF32, d_ld_, 1, {d_batch_stride_}};
  if (c.bias) p.bias = {bias_.data(), DType::kF32, 1, {0}};
  p.alpha = c.alpha, p.beta = c.c ? 2.0f : 0.0f;
  NormalProblem normal;
  if (const Status s = normalize(p, normal); !s.ok()) return s.message;
  if (normal.path != Path::kGemm || normal.swapped || normal.a.pack || normal.b.pack ||
      (normal.epilogue.tma_columns > 0) != (c.store == Store::kTma))
    return "the case does not reach the path it is meant for";
  swap_for(config_, normal);
  const TileGrid grid = emulated::make_launch(normal, {config_, c.schedule}, c.num_ctas).params.grid;
  std::vector<float> sums(sums_bytes(config_, grid) / sizeof(float), NAN);
  emulated::Launch launch =
      emulated::make_launch(normal, {config_, c.schedule}, c.num_ctas, sums.empty() ? nullptr : sums.data());
  launch.seed = seed, launch.log = events != nullptr, launch.find_races = find_races;
  const emulated::Result result = kernel(launch);
  if (events) *events = result.events;
  if (!result.ok()) return result.failure;
  if (!sums.empty()) emulated::add_tail(normal, config_, grid, sums.data());
  if (d_ == expected_) return "";
  const int64_t first = std::mismatch(d_.begin(), d_.end(), expected_.begin()).first - d_.begin();
  const int64_t index = first / size_of(c.out) - kPad, in_batch = index % d_batch_stride_;
  return "wrong number at batch " + std::to_string(index / d_batch_stride_) + " row " +
         std::to_string(in_batch / d_ld_) + " column " + std::to_string(in_batch % d_ld_);
}

}  // namespace hopgemm::test
