// A ladder call as the product's host code and the emulator's know it.
#pragma once
#include "host/normal_form.h"
#include "ladder/rung.h"

namespace hopgemm::ladder {

inline NormalProblem normal_problem(const Call& c) {
  NormalProblem p{};
  p.path = Path::kGemm;
  p.m = c.m, p.n = c.n, p.k = c.k;
  p.batch_inner = p.batch_outer = 1;
  p.a.data = c.a, p.b.data = c.b;
  p.a.major = p.b.major = Major::kK;
  p.a.mn_stride = p.b.mn_stride = c.k;
  p.a.k_stride = p.b.k_stride = 1;
  p.epilogue.alpha = 1.0f;
  p.epilogue.d.data = c.d;
  p.epilogue.d.row_stride = c.n;
  p.epilogue.d.col_stride = 1;
  p.epilogue.d.dtype = c.dtype;
  p.epilogue.m = c.m, p.epilogue.n = c.n;
  p.epilogue.tma_columns = c.n;
  return p;
}

}  // namespace hopgemm::ladder
