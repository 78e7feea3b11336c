// Work that nobody waits for until its result is wanted.
#pragma once

#include <functional>
#include <future>
#include <memory>

namespace thinwire {

// One thread that does one job after another, started with the first. In a process made by fork(), which lacks the thread,
// and where there is no thread to be had, jobs are done by who gives them.
class Background {
 public:
  Background();
  // Finishes the job at hand; those behind it are given up, and their futures are broken.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // For any thread. What the job throws is thrown by the future.
  std::shared_future<void> submit(std::function<void()> job);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace thinwire
