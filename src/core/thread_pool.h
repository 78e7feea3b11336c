// Threads of one worker that share loops over pieces.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include <sys/types.h>

namespace thinwire {

// The thread that calls takes part, and never waits for a helper to begin. Several may call at once, and share the helpers,
// which the first loop that is worth it starts. As results must not depend on their number, fewer are no error: where the
// system refuses another one, and in a process made by fork(), which has none of them, the others do the work.
class ThreadPool {
 public:
  // threads: at least 1, the one that calls included.
  explicit ThreadPool(int threads);
  // Not while a loop runs.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t threads() const { return threads_; }

  // Calls body(i, thread) once for every i below `count`, in no certain order, and returns when all have returned. Calls
  // that run at the same time have different `thread`, below threads(). If calls throw, so does this, what the one of the
  // least i threw; some calls beyond that i are then left out. elements: what all calls together work on; for few of them
  // no helper is woken.
  template <class Body>
  void for_each(std::size_t count, std::uint64_t elements, const Body& body) {
    if (threads_ == 1 || count < 2 || elements < 2 * kElementsOfThread || is_forked()) {
      for (std::size_t i = 0; i < count; ++i) body(i, std::size_t{0});
      return;
    }
    Loop loop(count, block_of(count), &body, [](const void* erased, std::size_t i, std::size_t thread) {
      (*static_cast<const Body*>(erased))(i, thread);
    });
    run(loop, elements / kElementsOfThread);
  }

 private:
  // Some 50 us of encoding, which is what it takes until a thread is awake.
  static constexpr std::uint64_t kElementsOfThread = 65536;

  struct Shared;
  using Call = void(const void* body, std::size_t i, std::size_t thread);

  // Lives where for_each() was called.
  struct Loop {
    Loop(std::size_t the_count, std::size_t the_block, const void* the_body, Call* the_call)
        : count(the_count), block(the_block), body(the_body), call(the_call) {}

    const std::size_t count;
    const std::size_t block;  // indices that a thread takes at a time
    const void* const body;
    Call* const call;
    std::atomic<std::size_t> next{0};  // the first index that nobody has taken

    std::mutex failing;
    std::size_t failed = 0;
    std::exception_ptr error;

    // Guarded by the pool's mutex.
    Loop* following = nullptr;
    int helpers = 0;
  };

  // Neighbouring indices are neighbours in memory; but at the end all threads should be done at about the same time.
  std::size_t block_of(std::size_t count) const {
    constexpr std::size_t kBlocksPerThread = 16;
    const std::size_t block = count / (kBlocksPerThread * threads_);
    return block > 0 ? block : 1;
  }

  bool is_forked() const;
  void run(Loop& loop, std::uint64_t threads_worth);
  void start_helpers();
  void help(std::size_t thread);
  static void take_part(Loop& loop, std::size_t thread) noexcept;

  const std::size_t threads_;
  const pid_t process_;
  std::unique_ptr<Shared> shared_;  // null where there is only one thread
};

}  // namespace thinwire
