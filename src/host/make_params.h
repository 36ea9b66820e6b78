// The kernel's argument from a problem, all but its tensor maps: for the GPU and for the emulator.
#pragma once
#include "host/normal_form.h"

namespace hopgemm {

template <class TensorMap> GemmParams<TensorMap> make_params(const NormalProblem& p, const Config& config) {
  GemmParams<TensorMap> params;
  params.grid =
      make_tile_grid(config, p.m, p.n, p.k, static_cast<int>(p.batch_inner), static_cast<int>(p.batch_outer));
  params.a_batch_inner = p.a.batch_inner_stride != 0, params.a_batch_outer = p.a.batch_outer_stride != 0;
  params.b_batch_inner = p.b.batch_inner_stride != 0, params.b_batch_outer = p.b.batch_outer_stride != 0;
  params.a_policy = config.schedule.a_policy, params.b_policy = config.schedule.b_policy,
  params.d_policy = config.schedule.d_policy;
  params.leaves_room = false;  // what is on the device is not known here
  params.epilogue = p.epilogue;
  return params;
}

}  // namespace hopgemm
