// Configs as text: `bf16_kk_128x256x64_c2x1_s4_coop` names a kernel, and what follows a `+` its schedule
// where that is not the default: `+m8` strips of 8 along M (`n8`: along N), `+k8` K turns every 8 steps,
// `+ctas128`, `+waves2` a launch for every two waves, `+split2` K over two CTAs, `+tail4x64` the last 4 tiles
// in 64 ranges, and L2 policies: `+af` A evict-first, `+al` evict-last, likewise `b` and `d`. No name, or
// "auto", asks for a choice.
#pragma once
#include "config/instances.h"

namespace hopgemm {

bool is_automatic(const char* name);

void format_config(const Instance& instance, const Schedule& schedule, char (&name)[kMaxConfigName]);

// False where no such instance exists or the schedule cannot be read.
bool parse_config(const char* name, const Instance*& instance, Schedule& schedule);

}  // namespace hopgemm
