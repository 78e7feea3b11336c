// An exchange: a distributed algorithm written as a coroutine that awaits collectives and never performs one.
//
//   Exchange mean_of(std::span<float> values, Context& context) {
//     Await sum = context.sum(values);
//     co_await sum;
//     ...
//   }
//
// Exchanges nest: co_await another Exchange to run it as a part. The outermost one is driven by next(): it resumes the
// innermost coroutine, which runs until it awaits a collective.
//
// Rules, because g++ 12 destroys some operands twice: what is awaited is a named local (never a braced temporary), and
// no co_await stands inside ?:.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "core/frame_pool.h"
#include "thinwire/collective.h"

namespace thinwire {

class Exchange;

// Awaits one collective; afterwards its spans hold the combined data.
class Await {
 public:
  explicit Await(const Collective& collective) : collective_(collective) {}

  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> frame) noexcept {
    frame.promise().root->pending = &collective_;
    frame.promise().root->innermost = frame;
  }
  void await_resume() const noexcept {}

 private:
  Collective collective_;
};

// Awaited by an exchange where it knows all that it needs, and has changed nothing yet: from here on it awaits nothing more, cannot
// fail, and only writes what it found. Whoever drives the exchange may let it wait until others have come as far. For the
// outermost exchange; parts of it, whose results it still needs, do not wait.
class CommitPoint {
 public:
  explicit CommitPoint(bool is_part) : is_part_(is_part) {}
  bool await_ready() const noexcept { return is_part_; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> frame) noexcept {
    frame.promise().root->pending = &kMark;
    frame.promise().root->innermost = frame;
  }
  void await_resume() const noexcept {}

  // Whether this, which an exchange's next() has returned, is no collective but its commit point.
  static bool is(const Collective* pending) { return pending == &kMark; }

 private:
  static constexpr Collective kMark{};
  bool is_part_;
};

class [[nodiscard]] Exchange {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  Exchange() = default;
  explicit Exchange(Handle frame) : frame_(frame) {}
  Exchange(Exchange&& other) noexcept : frame_(std::exchange(other.frame_, {})) {}
  Exchange& operator=(Exchange&& other) noexcept {
    std::swap(frame_, other.frame_);
    return *this;
  }
  ~Exchange() {
    if (frame_) frame_.destroy();
  }

  // Runs to the next collective and returns it; it must be performed before next() is called again. Null: done. Throws
  // what the exchange throws, after which it is done. Only for the outermost exchange. May return a commit point (CommitPoint::is).
  const Collective* next();

  // co_await exchange, for a named local.
  auto operator co_await() & noexcept;

 private:
  Handle frame_;
};

struct Exchange::promise_type {
  promise_type* root = this;                 // the outermost exchange's promise
  const Collective* pending = nullptr;       // in the root: what is awaited
  std::coroutine_handle<> innermost;         // in the root: who awaits it; null before the start
  std::coroutine_handle<> caller;            // who awaits this exchange; null in the root
  std::exception_ptr error;

  static void* operator new(std::size_t bytes) { return take_frame(bytes); }
  static void operator delete(void* frame, std::size_t bytes) noexcept { return_frame(frame, bytes); }

  Exchange get_return_object() { return Exchange(Handle::from_promise(*this)); }
  std::suspend_always initial_suspend() noexcept { return {}; }
  void return_void() {}
  void unhandled_exception() { error = std::current_exception(); }

  // At its end an exchange goes on with its caller.
  struct Finish {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle frame) noexcept {
      if (frame.promise().caller) return frame.promise().caller;
      return std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };
  Finish final_suspend() noexcept { return {}; }
};

inline auto Exchange::operator co_await() & noexcept {
  struct Nested {
    Handle frame;
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle caller) noexcept {
      frame.promise().root = caller.promise().root;
      frame.promise().caller = caller;
      return frame;
    }
    void await_resume() const {
      if (frame.promise().error) std::rethrow_exception(frame.promise().error);
    }
  };
  return Nested{frame_};
}

}  // namespace thinwire
