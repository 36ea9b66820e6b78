// Fibers: call stacks that one OS thread switches between by hand, so that a run depends on its seed alone.
#pragma once
#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "hw/emulated/tsan.h"

namespace hopgemm::emulated {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  ~Fiber() {
    if (done_) pool().push_back(std::move(stack_));
    else if (stack_.memory) tsan::destroy_context(stack_.context);  // in the middle of something
  }

  void start(size_t stack_bytes, std::function<void()> body) {
    body_ = std::move(body);
    stack_ = take(stack_bytes);
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.memory.get();
    own_.uc_stack.ss_size = stack_.bytes;
    own_.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);  // makecontext passes ints
    makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(static_cast<uint64_t>(self) >> 32));
  }
  // From outside: runs it until it pauses or ends.
  void resume() {
    outside_ = tsan::this_context();
    tsan::switch_to(stack_.context);
    swapcontext(&caller_, &own_);
  }
  // From inside.
  void pause() {
    tsan::switch_to(outside_);
    swapcontext(&own_, &caller_);
  }
  bool done() const { return done_; }
  void* context() const { return stack_.context; }

 private:
  struct Stack {
    std::unique_ptr<char[]> memory;
    size_t bytes = 0;
    void* context = nullptr;
  };

  static void enter(unsigned low, unsigned high) {
    auto* self = reinterpret_cast<Fiber*>(static_cast<uintptr_t>(static_cast<uint64_t>(high) << 32 | low));
    self->body_();
    self->done_ = true;
    self->pause();
  }
  // Left for the next run: fresh memory would cost more than the run.
  static std::vector<Stack>& pool() {
    static thread_local std::vector<Stack> stacks;
    return stacks;
  }
  static Stack take(size_t bytes) {
    for (Stack& s : pool()) {
      if (s.bytes < bytes) continue;
      std::swap(s, pool().back());
      Stack taken = std::move(pool().back());
      pool().pop_back();
      return taken;
    }
    return {std::unique_ptr<char[]>(new char[bytes]), bytes, tsan::new_context()};
  }

  std::function<void()> body_;
  Stack stack_;
  ucontext_t own_{}, caller_{};
  void* outside_ = nullptr;
  bool done_ = false;
};

}  // namespace hopgemm::emulated
