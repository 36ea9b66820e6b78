// The hooks by which ThreadSanitizer follows the emulator: fibers are its threads, signals its only edges. The emulator's
// own bookkeeping is ignored; what the emulated kernel reads and writes is not. Without ThreadSanitizer all of this is empty.
#pragma once

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);  // reads and writes: one switch for both
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace hopgemm::emulated::tsan {

#ifdef __SANITIZE_THREAD__
inline void* this_context() { return __tsan_get_current_fiber(); }
inline void switch_to(void* context) { __tsan_switch_to_fiber(context, __tsan_switch_to_fiber_no_sync); }
inline void ignore() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
inline void observe() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
inline void release(void* address) { __tsan_release(address); }
inline void acquire(void* address) { __tsan_acquire(address); }
// A context is never destroyed: they are few, and taken again.
inline void* new_context() {
  void* const here = this_context();
  void* const context = __tsan_create_fiber(0);
  switch_to(context);
  ignore();
  switch_to(here);
  return context;
}
#else
inline void* this_context() { return nullptr; }
inline void switch_to(void*) {}
inline void ignore() {}
inline void observe() {}
inline void release(void*) {}
inline void acquire(void*) {}
inline void* new_context() { return nullptr; }
#endif

// Accesses of the emulated program.
struct Observed {
  Observed() { observe(); }
  ~Observed() { ignore(); }
};

}  // namespace hopgemm::emulated::tsan
