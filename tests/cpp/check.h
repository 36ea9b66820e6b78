// CHECK counts and prints; a test's main returns whether any failed.
#pragma once
#include <cstdio>

namespace hopgemm::test {

inline int checks = 0, failures = 0;

inline bool check(bool ok, const char* what, const char* file, int line) {
  ++checks;
  if (!ok && ++failures <= 20) std::printf("%s:%d: %s\n", file, line, what);
  return ok;
}

inline int report(const char* name) {
  std::printf("%-40s %9d checks %s\n", name, checks, failures ? "FAILED" : "ok");
  return failures != 0 || checks == 0;
}

}  // namespace hopgemm::test

#define CHECK(condition) ::hopgemm::test::check(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
