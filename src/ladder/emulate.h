// A rung's roles on the emulated machine.
#pragma once
#include "hw/emulated/hw.h"
#include "ladder/roles.h"

namespace hopgemm::ladder {

// As run_roles() in kernel.cuh, a fiber for each role. A role that the rung does not have comes in and
// leaves.
template <class Roles, class Hw> emulated::Result emulate_rung(const emulated::Launch& asked) {
  emulated::Launch launch = asked;
  launch.begins_early = false;
  launch.params.b.box_rows = box_rows(b_tile(tensor_map_config(launch.config)));
  return emulate_roles<Hw>(launch, [&launch](Hw& hw) {
    if (hw.consumer() >= 0 && hw.consumer() < Roles::kConsumers) Roles::consume(hw, launch.params);
    if constexpr (Roles::kProducer > 0)
      if (hw.consumer() < 0) Roles::produce(hw, launch.params);
  });
}

struct EmulatedRung {
  const char* name;
  KernelConfig config;  // its dtype is the launch's: role loops know nothing of it
  Schedule schedule;
  bool persistent;
  int step_n;
  emulated::Result (*run)(const emulated::Launch&);
};

template <class Roles> constexpr EmulatedRung emulated_rung(const char* name) {
  constexpr KernelConfig kConfig = Roles::config(DType::kBF16);
  return {name,
          kConfig,
          Roles::kSchedule,
          Roles::kPersistent,
          Roles::kStepN,
          &emulate_rung<Roles, EmulatedHw<kConfig>>};
}

}  // namespace hopgemm::ladder
