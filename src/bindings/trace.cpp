// hopgemm._trace: timelines of the kernel, from a GPU or from the model, and the order of its tiles. Thin:
// records leave as bytes, and python/hopgemm/_trace_events.py reads them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "bindings/cuda_runtime.h"
#include "config/instances.h"
#include "host/config_name.h"
#include "host/select.h"
#include "trace/models.h"
#include "trace/traced.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using hopgemm::Config;
using hopgemm::Instance;
using hopgemm::KernelConfig;
using hopgemm::TileGrid;

struct Walk {
  int index;  // in kInstances
  Config config;
  TileGrid grid;
};

// `k`: 1 where only the order of the tiles is wanted.
Walk walk_of(const std::string& name, int64_t m, int64_t n, int64_t k = 1) {
  const Instance* instance;
  Walk w;
  if (!hopgemm::parse_config(name.c_str(), instance, w.config.schedule) ||
      hopgemm::parts_k(w.config.schedule))
    throw nb::value_error(
        ("hopgemm.trace: config '" + name +
         "' cannot be traced. Take a kk kernel of hopgemm._core.configs() that is not swapped, without +tail")
            .c_str());
  for (int64_t size : {m, n})
    if (size < 1 || size > 1 << 24)
      throw nb::value_error(
          ("hopgemm.trace: M and N are " + std::to_string(m) + " and " + std::to_string(n) + "; 1 to 2^24")
              .c_str());
  w.index = static_cast<int>(instance - hopgemm::kInstances);
  w.config.kernel = instance->config;
  w.grid = hopgemm::make_tile_grid(w.config, m, n, k, 1, 1);
  return w;
}

nb::bytes as_bytes(const void* data, size_t size) { return nb::bytes(static_cast<const char*>(data), size); }

std::vector<std::string> traced_configs() {
  std::vector<std::string> names;
  for (int i = 0; i < hopgemm::kNumInstances; ++i)
    if (hopgemm::kInstances[i].kernel()) names.push_back(hopgemm::kInstances[i].name);
  return names;
}

nb::list tile_order(const std::string& config, int64_t m, int64_t n) {
  const Walk w = walk_of(config, m, n);
  nb::list order;
  for (int i = 0; i < w.grid.num_blocks; ++i) {
    const hopgemm::Block b = hopgemm::block_at(w.grid, i);
    order.append(nb::make_tuple(b.m, b.n, b.k_reversed));
  }
  return order;
}

char letter(hopgemm::CachePolicy p) {
  return p == hopgemm::CachePolicy::kEvictFirst ? 'f' : p == hopgemm::CachePolicy::kEvictLast ? 'l' : 'n';
}

nb::dict facts(const std::string& config, int64_t m, int64_t n) {
  const Walk w = walk_of(config, m, n);
  const KernelConfig& c = w.config.kernel;
  nb::dict d;
  d["tile_m"] = c.tile_m, d["tile_n"] = c.tile_n, d["tile_k"] = hopgemm::kTileK;
  d["cluster_m"] = c.cluster_m, d["cluster_n"] = c.cluster_n;
  d["num_stages"] = c.num_stages;
  d["cooperative"] = hopgemm::is_cooperative(c);
  const hopgemm::Schedule& schedule = w.config.schedule;
  d["along_m"] = schedule.along_m;
  d["policies"] =
      std::string{letter(schedule.a_policy), letter(schedule.b_policy), letter(schedule.d_policy)};
  return d;
}

nb::dict model(const std::string& config, int64_t m, int64_t n, int64_t k, int ctas) {
  const Walk w = walk_of(config, m, n, k);
  const int size = hopgemm::cluster_size(w.config.kernel);
  if (k < 1 || ctas < size || ctas % size)
    throw nb::value_error(("hopgemm.trace: K is " + std::to_string(k) + " and the grid " +
                           std::to_string(ctas) + " CTAs; K from 1, CTAs a multiple of " +
                           std::to_string(size))
                              .c_str());
  hopgemm::trace::Trace trace;
  const hopgemm::trace::ModelLaunch launch{w.config.kernel, w.grid, ctas, {}};
  const int64_t cycles = hopgemm::trace::model_of(w.index)(launch, trace);
  nb::list streams;
  for (const auto& records : trace)
    streams.append(as_bytes(records.data(), records.size() * sizeof(hopgemm::trace::Record)));
  nb::dict d;
  d["cycles"] = cycles;
  d["streams"] = streams;
  return d;
}

nb::dict run(const std::string& config, int64_t m, int64_t n, int64_t k, int capacity, int device) {
  const Walk w = walk_of(config, m, n);
  if (!hopgemm::kInstances[w.index].kernel())
    throw nb::value_error(("hopgemm.trace: there is no traced build of '" + config +
                           "'; traced_configs() names those that have one")
                              .c_str());
  if (capacity < 1 || capacity > 1 << 20)
    throw nb::value_error(
        ("hopgemm.trace: room for " + std::to_string(capacity) + " records a role; 1 to 2^20").c_str());
  hopgemm::trace::GpuTrace t;
  hopgemm::Status status;
  {
    static std::mutex one_at_a_time;
    nb::gil_scoped_release release;
    const std::lock_guard lock(one_at_a_time);
    hopgemm::DeviceGuard guard(device);
    status = guard.status();
    if (status.ok()) status = hopgemm::trace::run_traced(m, n, k, config.c_str(), capacity, t);
  }
  if (!status.ok() && status.code == hopgemm::Code::kInvalidArgument) throw nb::value_error(status.message);
  if (!status.ok()) throw std::runtime_error(status.message);
  nb::list streams;
  uint64_t lost = 0;
  for (size_t i = 0; i < t.counts.size(); ++i) {
    const uint32_t kept = std::min<uint32_t>(t.counts[i], t.capacity);
    lost += t.counts[i] - kept;
    streams.append(as_bytes(&t.records[i * t.capacity], kept * sizeof(hopgemm::trace::Record)));
  }
  nb::list clocks;
  for (const auto& c : t.clocks) clocks.append(nb::make_tuple(c.nanoseconds, c.cycles));
  nb::dict d;
  d["streams"] = streams;
  d["lost"] = lost;
  d["clocks"] = clocks;
  d["sms"] = t.sms;
  d["milliseconds"] = t.milliseconds;
  return d;
}

}  // namespace

NB_MODULE(_trace_core, m) {
  m.def("traced_configs", &traced_configs, "Names of the kernels with a traced build.");
  m.def("tile_order", &tile_order, "config"_a, "m"_a, "n"_a,
        "The cluster tiles in the order of the walk: (m index, n index, K reversed).");
  m.def("facts", &facts, "config"_a, "m"_a, "n"_a, "What a config's name says, as a dict.");
  m.def("model", &model, "config"_a, "m"_a, "n"_a, "k"_a, "ctas"_a,
        "Runs the role loops on the model's clock: {cycles, streams}; a stream for each CTA and role.");
  m.def("run", &run, "config"_a, "m"_a, "n"_a, "k"_a, "capacity"_a, "device"_a,
        "Runs the traced kernel: {streams, lost, clocks, sms, milliseconds}.");
}
