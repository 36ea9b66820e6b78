// Every kernel that can be drawn: its model for any machine, and its traced build where there is one.
#pragma once
#include "trace/model.h"

namespace hopgemm::trace {

using RunModel = int64_t (*)(const ModelLaunch&, Trace&);

// Of kInstances[index].
RunModel model_of(int index);

}  // namespace hopgemm::trace
