#include "host/config_name.h"

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>

namespace hopgemm {
namespace {

const char* policy_suffix(CachePolicy p) {
  return p == CachePolicy::kEvictFirst ? "f" : p == CachePolicy::kEvictLast ? "l" : "";
}

CachePolicy* policy_of(Schedule& s, char operand) {
  return operand == 'a' ? &s.a_policy : operand == 'b' ? &s.b_policy : operand == 'd' ? &s.d_policy : nullptr;
}

// A number from 1 to 100000 that fills the text up to `end`.
bool parse_number(const char* text, const char* end, int& value) {
  char* stop;
  const long v = std::strtol(text, &stop, 10);
  value = static_cast<int>(v);
  return stop == end && *text >= '1' && *text <= '9' && v >= 1 && v <= 100000;
}

bool parse_token(const char* token, const char* end, Schedule& s) {
  if (end - token == 2 && (token[1] == 'f' || token[1] == 'l')) {
    CachePolicy* policy = policy_of(s, token[0]);
    if (policy) *policy = token[1] == 'f' ? CachePolicy::kEvictFirst : CachePolicy::kEvictLast;
    return policy;
  }
  if (!std::strncmp(token, "ctas", 4)) return parse_number(token + 4, end, s.max_ctas);
  if (!std::strncmp(token, "split", 5)) return parse_number(token + 5, end, s.split);
  if (!std::strncmp(token, "waves", 5)) return parse_number(token + 5, end, s.waves);
  if (!std::strncmp(token, "tail", 4)) {
    const char* x = std::strchr(token, 'x');
    return x && x < end && parse_number(token + 4, x, s.tail) && parse_number(x + 1, end, s.ranges);
  }
  if (*token == 'k') return parse_number(token + 1, end, s.k_period);
  if (*token != 'm' && *token != 'n') return false;
  s.along_m = *token == 'm';
  return parse_number(token + 1, end, s.group);
}

// Every launch looks its config up: one name after the other took up to 0.7 us. Never destroyed, since a
// thread may still launch while the process ends.
const Instance* find_instance(std::string_view name) {
  using ByName = std::unordered_map<std::string_view, const Instance*>;
  static const ByName& by_name = *[] {
    auto* all = new ByName;
    for (int i = 0; i < kNumInstances; ++i) (*all)[kInstances[i].name] = &kInstances[i];
    return all;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace

bool is_automatic(const char* name) { return !name || !*name || !std::strcmp(name, "auto"); }

void format_config(const Instance& instance, const Schedule& s, char (&name)[kMaxConfigName]) {
  const Schedule usual;
  int used = static_cast<int>(std::strlen(instance.name));
  std::memcpy(name, instance.name, used + 1);
  auto add = [&](const char* format, auto value) {
    used += std::snprintf(name + used, kMaxConfigName - used, format, value);
  };
  if (s.along_m != usual.along_m || s.group != usual.group) add(s.along_m ? "+m%d" : "+n%d", s.group);
  if (s.k_period) add("+k%d", s.k_period);
  if (s.max_ctas) add("+ctas%d", s.max_ctas);
  if (s.waves) add("+waves%d", s.waves);
  if (s.split > 1) add("+split%d", s.split);
  if (s.tail) add("+tail%d", s.tail), add("x%d", s.ranges);
  if (s.a_policy != CachePolicy::kNormal) add("+a%s", policy_suffix(s.a_policy));
  if (s.b_policy != CachePolicy::kNormal) add("+b%s", policy_suffix(s.b_policy));
  if (s.d_policy != CachePolicy::kNormal) add("+d%s", policy_suffix(s.d_policy));
}

bool parse_config(const char* name, const Instance*& instance, Schedule& schedule) {
  if (std::strlen(name) >= kMaxConfigName) return false;
  const char* plus = std::strchr(name, '+');
  instance = find_instance(plus ? std::string_view(name, plus - name) : std::string_view(name));
  if (!instance) return false;
  schedule = {};
  while (plus) {
    const char* next = std::strchr(plus + 1, '+');
    if (!parse_token(plus + 1, next ? next : plus + std::strlen(plus), schedule)) return false;
    plus = next;
  }
  return true;
}

}  // namespace hopgemm
