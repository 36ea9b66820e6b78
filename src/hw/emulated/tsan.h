// The hooks by which ThreadSanitizer follows the emulator: fibers are its threads, signals its only edges.
// The emulator's own bookkeeping is ignored; what the emulated kernel reads and writes is not. Without
// ThreadSanitizer all of this is empty.
#pragma once
#include <cstddef>
#include <vector>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
// Of reads and writes: one switch serves both.
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void __tsan_read_range(void* address, unsigned long bytes);
extern "C" void __tsan_write_range(void* address, unsigned long bytes);
#endif

namespace hopgemm::emulated::tsan {

#ifdef __SANITIZE_THREAD__
inline void* this_context() { return __tsan_get_current_fiber(); }
inline void switch_to(void* context) { __tsan_switch_to_fiber(context, __tsan_switch_to_fiber_no_sync); }
inline void ignore() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
inline void observe() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
inline void release(void* address) { __tsan_release(address); }
inline void acquire(void* address) { __tsan_acquire(address); }
inline int reports = 0;  // of this run
// Accesses of the emulated program.
inline void touch(void* address, size_t bytes, void (*range)(void*, unsigned long)) {
  observe();
  constexpr size_t kPart = 16;  // one report is enough, and a range gives one for every 8 bytes
  for (size_t at = 0; at < bytes && reports == 0; at += kPart)
    range(static_cast<char*>(address) + at, bytes - at < kPart ? bytes - at : kPart);
  ignore();
}
inline void read(void* address, size_t bytes) { touch(address, bytes, __tsan_read_range); }
inline void write(void* address, size_t bytes) { touch(address, bytes, __tsan_write_range); }
inline std::vector<void*>& contexts() {
  static thread_local std::vector<void*> all;
  return all;
}
template <class F> void in_context(void* context, F f) {
  void* const here = this_context();
  switch_to(context);
  f();
  switch_to(here);
}
inline void* new_context() {
  contexts().push_back(__tsan_create_fiber(0));
  in_context(contexts().back(), ignore);
  return contexts().back();
}
inline void destroy_context(void* context) {
  std::erase(contexts(), context);
  in_context(context, observe);
  __tsan_destroy_fiber(context);
}
// Between two runs, which share memory but nothing else: all before is before all after.
inline void separate_runs() {
  reports = 0;
  static thread_local char before, after;
  for (void* context : contexts()) in_context(context, [] { release(&before); });
  acquire(&before);
  release(&after);
  for (void* context : contexts()) in_context(context, [] { acquire(&after); });
}
#else
inline void* this_context() { return nullptr; }
inline void switch_to(void*) {}
inline void ignore() {}
inline void observe() {}
inline void release(void*) {}
inline void acquire(void*) {}
inline void read(void*, size_t) {}
inline void write(void*, size_t) {}
inline void* new_context() { return nullptr; }
inline void destroy_context(void*) {}
inline void separate_runs() {}
inline constexpr int reports = 0;
#endif

}  // namespace hopgemm::emulated::tsan
