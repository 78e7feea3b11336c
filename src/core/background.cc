#include "core/background.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include <unistd.h>

namespace thinwire {

struct Background::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::packaged_task<void()>> jobs;
  bool ending = false;
  std::thread thread;
  const pid_t process = getpid();

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ending || !jobs.empty(); });
      if (ending) return;
      std::packaged_task<void()> job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }
};

Background::Background() : state_(std::make_unique<State>()) {}

Background::~Background() {
  if (state_->process != getpid()) {
    // The thread was left behind in the parent, and may have held the mutex.
    static_cast<void>(state_.release());
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

std::shared_future<void> Background::submit(std::function<void()> job) {
  std::packaged_task<void()> task(std::move(job));
  std::shared_future<void> done = task.get_future().share();
  if (state_->process != getpid()) {
    task();
    return done;
  }
  std::unique_lock lock(state_->mutex);
  if (!state_->thread.joinable()) {
    try {
      state_->thread = std::thread([state = state_.get()] { state->work(); });
    } catch (const std::system_error&) {
      lock.unlock();
      task();
      return done;
    }
  }
  state_->jobs.push_back(std::move(task));
  lock.unlock();
  state_->changed.notify_all();
  return done;
}

}  // namespace thinwire
