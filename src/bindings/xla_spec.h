// From labels to a Problem: "ab,bc->ac" and row-major shapes become sizes and strides. Plain C++, shared by
// the CUDA handler and the tests' host handler; python/hopgemm/_jax_labels.py mirrors it, and a test compares
// the two.
//
// One letter per dimension of lhs, rhs and result. Each of m, n, k is a run of adjacent labels in the same
// order wherever it appears: one dimension to the kernel. Every other label is a batch dimension; an operand
// without it has stride 0 there.
#pragma once
#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "api/gemm.h"

namespace hopgemm::xla_call {

// The operands of one call, in the order of the label strings: lhs, rhs, result, c, bias.
enum Operand { kLhs, kRhs, kOut, kC, kBias, kOperands };

struct Labels {
  std::string of[kOperands];
  bool has_c = false, has_bias = false;
  std::string m, n, k, batch;  // the letters that make up each dimension of the GEMM
};

using Dims = std::span<const int64_t>;

[[gnu::format(printf, 1, 2)]] inline Status invalid(const char* format, ...) {
  Status status;
  status.code = Code::kInvalidArgument;
  va_list args;
  va_start(args, format);
  std::vsnprintf(status.message, sizeof status.message, format, args);
  va_end(args);
  return status;
}

inline bool has(std::string_view labels, char c) { return labels.find(c) != std::string_view::npos; }
inline bool has_run(std::string_view labels, std::string_view run) {
  return labels.find(run) != std::string_view::npos;
}

// Splits "ab,bc->ac" and the epilogue's "c=ac,bias=c" into label strings.
inline Status split_labels(std::string_view spec, std::string_view epilogue, Labels& labels) {
  const size_t comma = spec.find(','), arrow = spec.find("->");
  if (comma == spec.npos || arrow == spec.npos || comma > arrow)
    return invalid("hopgemm: spec is '%.*s', must look like 'ab,bc->ac'", int(spec.size()), spec.data());
  labels.of[kLhs] = spec.substr(0, comma);
  labels.of[kRhs] = spec.substr(comma + 1, arrow - comma - 1);
  labels.of[kOut] = spec.substr(arrow + 2);
  while (!epilogue.empty()) {
    const size_t end = std::min(epilogue.find(','), epilogue.size());
    const std::string_view part = epilogue.substr(0, end);
    if (part.starts_with("c=") && !labels.has_c && !labels.has_bias) {
      labels.of[kC] = part.substr(2), labels.has_c = true;
    } else if (part.starts_with("bias=") && !labels.has_bias) {
      labels.of[kBias] = part.substr(5), labels.has_bias = true;
    } else {
      return invalid("hopgemm: epilogue has '%.*s', must be 'c=...', 'bias=...' or both in this order",
                     int(part.size()), part.data());
    }
    epilogue.remove_prefix(std::min(end + 1, epilogue.size()));
  }
  for (const std::string& s : labels.of)
    for (size_t i = 0; i < s.size(); ++i)
      if (s[i] < 'a' || s[i] > 'z' || s.find(s[i], i + 1) != s.npos)
        return invalid("hopgemm: labels '%s' must be distinct letters a to z", s.c_str());
  return {};
}

// Deals the letters to m, n, k and batch.
inline Status group_labels(Labels& labels) {
  const auto& [lhs, rhs, out, c, bias] = labels.of;
  for (char x : lhs + rhs + out + c + bias) {
    const bool known = has(lhs, x) || has(rhs, x), summed = has(lhs, x) && has(rhs, x);
    if (!known || !(has(out, x) || summed) || ((has(c, x) || has(bias, x)) && !has(out, x)))
      return invalid(
          "hopgemm: label '%c' of '%s,%s->%s' (c '%s', bias '%s') has no meaning: a letter of one operand "
          "must be in the result",
          x, lhs.c_str(), rhs.c_str(), out.c_str(), c.c_str(), bias.c_str());
  }
  for (char x : lhs)
    if (has(rhs, x) && !has(out, x)) labels.k += x;
  for (char x : out) {
    // A letter of one operand alone is a batch dimension where the bias has it (m) or lacks it (n).
    if (!has(rhs, x) && !has(bias, x)) labels.m += x;
    if (!has(lhs, x) && (!labels.has_bias || has(bias, x))) labels.n += x;
  }
  const auto in_c = [&](const std::string& run) {  // whole, or not at all: then c has stride 0
    return has_run(c, run) || run.find_first_of(c) == run.npos;
  };
  std::string &m = labels.m, &n = labels.n;
  while (!m.empty() && !(has_run(lhs, m) && has_run(out, m) && in_c(m))) m.erase(0, 1);
  while (!n.empty() &&
         !(has_run(rhs, n) && has_run(out, n) && in_c(n) && (!labels.has_bias || has_run(bias, n))))
    n.erase(0, 1);
  for (char x : out)
    if (!has(m, x) && !has(n, x)) labels.batch += x;
  if (labels.k.empty() || !has_run(lhs, labels.k) || !has_run(rhs, labels.k))
    return invalid(
        "hopgemm: '%s,%s->%s' sums over '%s', which must be one run of adjacent dimensions in both operands",
        lhs.c_str(), rhs.c_str(), out.c_str(), labels.k.c_str());
  if (labels.batch.size() > size_t{kMaxBatchDims})
    return invalid("hopgemm: '%s,%s->%s' has %zu batch dimensions, at most %d are possible", lhs.c_str(),
                   rhs.c_str(), out.c_str(), labels.batch.size(), kMaxBatchDims);
  return {};
}

// Elements between neighbours along the last label of `run`, in a row-major array; 0 where it lacks the run.
inline int64_t stride_of(std::string_view run, std::string_view labels, Dims dims) {
  if (run.empty() || !has(labels, run.back())) return 0;
  int64_t stride = 1;
  for (size_t i = labels.size(); i-- > 0 && labels[i] != run.back();) stride *= dims[i];
  return stride;
}

// Sizes and strides of the whole problem; pointers, types, alpha and beta are the caller's. A result whose
// inner label is of m is the transposed product: the operands change places.
inline Status fill_problem(Labels labels, const Dims (&dims)[kOperands], Problem& p) {
  int64_t size[256];
  std::fill(std::begin(size), std::end(size), -1);
  for (int i = 0; i < kOperands; ++i) {
    if (dims[i].size() != labels.of[i].size())
      return invalid("hopgemm: an operand labelled '%s' has %zu dimensions", labels.of[i].c_str(),
                     dims[i].size());
    for (size_t j = 0; j < dims[i].size(); ++j) {
      int64_t& known = size[static_cast<unsigned char>(labels.of[i][j])];
      if (known >= 0 && known != dims[i][j])
        return invalid("hopgemm: label '%c' is %lld in one operand and %lld in another", labels.of[i][j],
                       static_cast<long long>(known), static_cast<long long>(dims[i][j]));
      known = dims[i][j];
    }
  }
  const auto product = [&](std::string_view run) {
    int64_t n = 1;
    for (char x : run) n *= size[static_cast<unsigned char>(x)];
    return n;
  };
  const auto fill = [&](Operand i, std::string_view rows, std::string_view cols, Matrix& matrix) {
    matrix.row_stride = stride_of(rows, labels.of[i], dims[i]);
    matrix.col_stride = stride_of(cols, labels.of[i], dims[i]);
    for (size_t j = 0; j < labels.batch.size(); ++j)
      matrix.batch_stride[j] = stride_of(std::string_view(labels.batch).substr(j, 1), labels.of[i], dims[i]);
  };
  const std::string& out = labels.of[kOut];
  Operand a = kLhs, b = kRhs;
  if (!out.empty() && has(labels.m, out.back())) {
    if (labels.has_bias)
      return invalid("hopgemm: a result '%s' with a bias must end in a label of rhs", out.c_str());
    std::swap(a, b), std::swap(labels.m, labels.n);
  }
  p.m = product(labels.m), p.n = product(labels.n), p.k = product(labels.k);
  p.batch_dims = static_cast<int>(labels.batch.size());
  for (int i = 0; i < p.batch_dims; ++i) p.batch[i] = product(std::string_view(labels.batch).substr(i, 1));
  fill(a, labels.m, labels.k, p.a);
  fill(b, labels.k, labels.n, p.b);
  fill(kOut, labels.m, labels.n, p.d);
  if (labels.has_c) fill(kC, labels.m, labels.n, p.c);
  if (labels.has_bias) {
    p.bias.stride = stride_of(labels.n, labels.of[kBias], dims[kBias]);
    for (int i = 0; i < p.batch_dims; ++i)
      p.bias.batch_stride[i] =
          stride_of(std::string_view(labels.batch).substr(i, 1), labels.of[kBias], dims[kBias]);
  }
  return {};
}

}  // namespace hopgemm::xla_call
