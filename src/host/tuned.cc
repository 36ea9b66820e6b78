#include "host/tuned.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "host/config_name.h"
#include "host/select.h"

namespace hopgemm {
namespace {

struct Hash {
  size_t operator()(const TuningKey& key) const {
    uint64_t hash = 0;
    auto mix = [&](uint64_t value) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    };
    for (int64_t size : {key.m, key.n, key.k, key.batch_inner, key.batch_outer})
      mix(static_cast<uint64_t>(size));
    mix(static_cast<uint64_t>(key.sm_count) << 32 | static_cast<uint64_t>(key.dtype) << 24 |
        static_cast<uint64_t>(key.out_dtype) << 17 | uint64_t{key.batch_invariant} << 16 |
        static_cast<uint64_t>(static_cast<uint8_t>(key.majors[0])) << 8 |
        static_cast<uint8_t>(key.majors[1]));
    return hash;
  }
};

using Configs = std::unordered_map<TuningKey, std::string, Hash>;
// A GPU's name is looked up as the characters that DeviceFacts has, without a std::string at each call.
struct NameHash : std::hash<std::string_view> {
  using is_transparent = void;
};
using Table = std::unordered_map<std::string, Configs, NameHash, std::equal_to<>>;

// The one mutable global of the library: a pointer to what never changes.
std::atomic<std::shared_ptr<const Table>> table;
std::atomic<bool> has_table{false};  // so that a process without one pays for a load and no more

}  // namespace

bool tuning_key(const Problem& problem, const DeviceFacts& facts, TuningKey& key) {
  NormalProblem p;
  if (problem.sm_limit < 0 || !normalize(problem, p).ok() || p.path != Path::kGemm) return false;
  key = {};
  key.dtype = problem.a.dtype, key.out_dtype = problem.d.dtype;
  key.majors[0] = p.a.major == Major::kK ? 'k' : 'm';
  key.majors[1] = p.b.major == Major::kK ? 'k' : 'n';
  key.m = p.m, key.n = p.n, key.k = p.k;
  key.batch_inner = p.batch_inner, key.batch_outer = p.batch_outer;
  key.sm_count = sms_to_use(problem, facts);
  key.batch_invariant = problem.batch_invariant;
  return true;
}

void set_tuned(const std::vector<TunedConfig>& configs) {
  auto fresh = std::make_shared<Table>();
  for (const TunedConfig& x : configs) (*fresh)[x.gpu][x.key] = x.config;
  table.store(configs.empty() ? nullptr : std::move(fresh));
  has_table.store(!configs.empty());
}

Status plan_tuned(const Problem& problem, const char* config, const DeviceFacts& facts, Plan& plan) {
  if (!has_table.load(std::memory_order_relaxed) || !is_automatic(config))
    return make_plan(problem, config, facts, plan);
  const std::shared_ptr<const Table> current = table.load();
  if (current) {
    const auto configs = current->find(std::string_view(facts.name));
    TuningKey key;
    if (configs != current->end() && tuning_key(problem, facts, key)) {
      const auto found = configs->second.find(key);
      if (found != configs->second.end() && !is_automatic(found->second.c_str()) &&
          make_plan(problem, found->second.c_str(), facts, plan).ok() && plan.sums_bytes <= kMaxSumsBytes) {
        std::snprintf(plan.reason, sizeof plan.reason, "tuned on this card");
        return {};
      }
    }
  }
  return make_plan(problem, config, facts, plan);
}

}  // namespace hopgemm
