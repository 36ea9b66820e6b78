// Making a Status.
#pragma once
#include <cstdarg>
#include <cstdio>

#include "api/gemm.h"

namespace hopgemm {

__attribute__((format(printf, 2, 3))) inline Status failure(Code code, const char* format, ...) {
  Status s;
  s.code = code;
  va_list args;
  va_start(args, format);
  std::vsnprintf(s.message, sizeof s.message, format, args);
  va_end(args);
  return s;
}

}  // namespace hopgemm

// Returns the Status of `expression` from the enclosing function unless it is ok.
#define HOPGEMM_TRY(expression)                                        \
  if (const ::hopgemm::Status status_ = (expression); !status_.ok()) { \
    return status_;                                                    \
  }
