#include "core/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <system_error>
#include <thread>
#include <vector>

#include "core/float_environment.h"

namespace thinwire {

struct ThreadPool::Shared {
  // The oldest loop that has indices left.
  Loop* open_loop() const {
    Loop* loop = loops;
    while (loop && loop->next.load(std::memory_order_relaxed) >= loop->count) loop = loop->following;
    return loop;
  }

  void add(Loop& loop) {
    Loop** end = &loops;
    while (*end) end = &(*end)->following;
    *end = &loop;
  }

  void remove(Loop& loop) {
    Loop** place = &loops;
    while (*place != &loop) place = &(*place)->following;
    *place = loop.following;
  }

  std::mutex mutex;
  std::condition_variable work_there;  // or the end
  std::condition_variable helper_done;
  Loop* loops = nullptr;  // all that run
  bool started = false;
  bool ending = false;
  std::vector<std::thread> helpers;
};

ThreadPool::ThreadPool(int threads)
    : threads_(static_cast<std::size_t>(threads)), process_(getpid()), shared_(threads > 1 ? new Shared : nullptr) {}

ThreadPool::~ThreadPool() {
  if (!shared_) return;
  if (is_forked()) {  // nobody is there to be joined, and a condition that somebody waited for cannot be destroyed
    static_cast<void>(shared_.release());
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->work_there.notify_all();
  for (std::thread& helper : shared_->helpers) helper.join();
}

bool ThreadPool::is_forked() const { return getpid() != process_; }

void ThreadPool::run(Loop& loop, std::uint64_t threads_worth) {
  {
    const std::lock_guard lock(shared_->mutex);
    start_helpers();
    shared_->add(loop);
  }
  const std::size_t blocks = (loop.count + loop.block - 1) / loop.block;
  const std::size_t threads = std::min({threads_, blocks, static_cast<std::size_t>(threads_worth)});
  for (std::size_t helper = 1; helper < threads; ++helper) shared_->work_there.notify_one();
  take_part(loop, 0);
  {
    std::unique_lock lock(shared_->mutex);
    shared_->remove(loop);
    shared_->helper_done.wait(lock, [&] { return loop.helpers == 0; });
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

void ThreadPool::start_helpers() {
  if (shared_->started) return;
  shared_->started = true;
  shared_->helpers.reserve(threads_ - 1);
  try {
    for (std::size_t thread = 1; thread < threads_; ++thread)
      shared_->helpers.emplace_back([this, thread] { help(thread); });
  } catch (const std::system_error&) {
    // The process has as many threads as it may have.
  }
}

void ThreadPool::help(std::size_t thread) {
  const FloatEnvironment environment;
  std::unique_lock lock(shared_->mutex);
  while (true) {
    Loop* loop = nullptr;
    shared_->work_there.wait(lock, [&] { return (loop = shared_->open_loop()) != nullptr || shared_->ending; });
    if (!loop) return;
    ++loop->helpers;
    lock.unlock();
    take_part(*loop, thread);
    lock.lock();
    if (--loop->helpers == 0) shared_->helper_done.notify_all();
  }
}

// Indices are taken in ascending order, so after a failure all before it have been taken, and will be called.
void ThreadPool::take_part(Loop& loop, std::size_t thread) noexcept {
  std::size_t i = 0;
  try {
    for (std::size_t end = 0; end < loop.count;) {
      i = loop.next.fetch_add(loop.block, std::memory_order_relaxed);
      for (end = std::min(i + loop.block, loop.count); i < end; ++i) loop.call(loop.body, i, thread);
    }
  } catch (...) {
    loop.next = loop.count;
    const std::lock_guard lock(loop.failing);
    if (!loop.error || i < loop.failed) {
      loop.failed = i;
      loop.error = std::current_exception();
    }
  }
}

}  // namespace thinwire
