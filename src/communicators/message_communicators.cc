#include "communicators/message_communicators.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "communicators/message_engine.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr int kMostLanes = 64;
constexpr auto kShortestNap = std::chrono::microseconds(10);
constexpr auto kLongestNap = std::chrono::microseconds(200);  // 250 KB at 10 Gb/s, which sockets hold
constexpr auto kIdleNap = std::chrono::milliseconds(5);
constexpr auto kPatienceAtClose = std::chrono::milliseconds(300);

// How long to wait until looking again whether something has moved: ever longer, as busy polling would take the cores that encode, but never by much
// more than a quarter of what has been waited, as in a ring each wait is on everybody's way.
class Naps {
 public:
  void note(bool moved) { next_ = moved ? kShortestNap : std::min(next_ + next_ / 4, kLongestNap); }
  std::chrono::microseconds next() const { return next_; }

 private:
  std::chrono::microseconds next_ = kShortestNap;
};

// Of all lanes of a worker.
class Mover {
 public:
  explicit Mover(MessageEngine& engine) : engine_(engine) {}
  virtual ~Mover() = default;
  virtual void start(std::size_t lane, const Collective& collective) = 0;
  virtual bool is_done(std::size_t lane) = 0;  // throws PeerError
  virtual void wait(std::size_t lane) = 0;     // until the lane is done, or for a moment
  virtual void leave(std::size_t lane) noexcept = 0;

 protected:
  MessageEngine& engine_;
};

// A thread of its own moves the messages.
class ThreadMover final : public Mover {
 public:
  explicit ThreadMover(MessageEngine& engine) : Mover(engine), lanes_(engine.lanes()) {
    if (engine.world_size() > 1) thread_ = std::thread([this] { serve(); });
  }

  ~ThreadMover() override {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (Lane& lane : lanes_) lane.leaving = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void start(std::size_t index, const Collective& collective) override {
    Lane& lane = lanes_[index];
    const bool moves = engine_.prepare(collective);
    {
      const std::lock_guard lock(mutex_);
      if (lane.fault.empty() && lane.leaving) lane.fault = "this worker has left the group";
      if (!lane.fault.empty()) throw PeerError(lane.fault);
      if (!moves) return;
      lane.asked = &collective;
    }
    wake_.notify_one();
  }

  bool is_done(std::size_t index) override {
    const std::lock_guard lock(mutex_);
    if (lanes_[index].asked) return false;
    if (!lanes_[index].fault.empty()) throw PeerError(lanes_[index].fault);
    return true;
  }

  void wait(std::size_t index) override {
    Lane& lane = lanes_[index];
    std::unique_lock lock(mutex_);
    lane.answered.wait(lock, [&] { return lane.asked == nullptr; });
  }

  void leave(std::size_t index) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      lanes_[index].leaving = true;
    }
    wake_.notify_one();
  }

 private:
  struct Lane {
    // Under the mutex:
    const Collective* asked = nullptr;  // its caller waits
    bool leaving = false;
    std::string fault;  // as the caller has been told, or will be
    std::condition_variable answered;

    // The thread's own:
    bool begun = false;
    bool left = false;

    bool has_order() const { return (asked && !begun) || (leaving && !left); }
  };

  void serve() noexcept {
    try {
      serve_lanes();
    } catch (const std::exception& error) {  // there is no memory left
      const std::lock_guard lock(mutex_);
      for (Lane& lane : lanes_) answer(lane, std::string("this worker's communication has ended: ") + error.what());
    }
  }

  void serve_lanes() {
    Naps naps;
    std::optional<std::chrono::nanoseconds> stopped;
    while (true) {
      const bool ordered = take_orders(), moved = engine_.progress();
      std::unique_lock lock(mutex_);
      for (std::size_t index = 0; index < lanes_.size(); ++index)
        if (lanes_[index].begun && !engine_.is_active(index)) answer(lanes_[index], engine_.fault(index));
      if (stopping_ && !stopped) stopped = engine_.messenger().now();
      if (stopped && (engine_.all_are_told() || engine_.messenger().now() - *stopped > kPatienceAtClose)) return;
      naps.note(ordered || moved);
      if (ordered || moved || std::ranges::any_of(lanes_, &Lane::has_order)) continue;
      if (engine_.any_active() || stopped) wake_.wait_for(lock, naps.next());
      else wake_.wait_for(lock, kIdleNap);
    }
  }

  bool take_orders() {
    bool any = false;
    for (std::size_t index = 0; index < lanes_.size(); ++index) {
      Lane& lane = lanes_[index];
      std::optional<Collective> asked;
      bool leaves = false;
      {
        const std::lock_guard lock(mutex_);
        if (lane.asked && !lane.begun) asked = *lane.asked;
        leaves = lane.leaving && !std::exchange(lane.left, lane.leaving);
        lane.begun |= asked.has_value();
      }
      if (asked && engine_.fault(index).empty()) engine_.begin(index, *asked);
      if (leaves) engine_.leave(index);
      any |= asked || leaves;
    }
    return any;
  }

  // Under the mutex.
  static void answer(Lane& lane, const std::string& fault) {
    lane.asked = nullptr;
    lane.begun = false;
    if (lane.fault.empty()) lane.fault = fault;
    lane.answered.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<Lane> lanes_;
  std::thread thread_;
};

// Whoever waits moves the messages of all lanes.
class CallerMover final : public Mover {
 public:
  using Mover::Mover;

  ~CallerMover() override {
    try {
      for (std::size_t lane = 0; lane < engine_.lanes(); ++lane) engine_.leave(lane);
      const auto begin = engine_.messenger().now();
      while (!engine_.all_are_told() && engine_.messenger().now() - begin < kPatienceAtClose)
        if (!engine_.progress()) engine_.messenger().nap(kShortestNap);
    } catch (const std::exception&) {  // there is no memory left; the others find out by their timeouts
    }
  }

  void start(std::size_t lane, const Collective& collective) override {
    const bool moves = engine_.prepare(collective);
    const std::lock_guard lock(mutex_);
    check(lane);
    if (moves) engine_.begin(lane, collective);
  }

  bool is_done(std::size_t lane) override {
    const std::lock_guard lock(mutex_);
    if (engine_.is_active(lane)) moved_ |= engine_.progress();
    if (engine_.is_active(lane)) return false;
    check(lane);
    return true;
  }

  void wait(std::size_t) override {
    std::unique_lock lock(mutex_);
    const bool moved = std::exchange(moved_, false);
    naps_.note(moved);
    const auto nap = engine_.messenger().light_nap().value_or(naps_.next());
    lock.unlock();
    if (!moved) engine_.messenger().nap(nap);
  }

  void leave(std::size_t lane) noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      engine_.leave(lane);
      engine_.progress();
    } catch (const std::exception&) {  // as above
    }
  }

 private:
  void check(std::size_t lane) const {
    if (!engine_.fault(lane).empty()) throw PeerError(engine_.fault(lane));
  }

  std::mutex mutex_;
  bool moved_ = false;  // since the last nap
  Naps naps_;
};

// What the ends of a worker share.
class Worker {
 public:
  Worker(std::unique_ptr<Messenger> messenger, std::size_t lanes, std::chrono::milliseconds timeout, std::span<const int> hosts,
         MovedBy moved_by)
      : engine_(std::move(messenger), lanes, timeout, hosts) {
    if (moved_by == MovedBy::kThread) mover_ = std::make_unique<ThreadMover>(engine_);
    else mover_ = std::make_unique<CallerMover>(engine_);
  }

  MessageEngine& engine() { return engine_; }
  Mover& mover() { return *mover_; }

 private:
  MessageEngine engine_;
  std::unique_ptr<Mover> mover_;
};

class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(std::shared_ptr<Worker> worker, std::size_t lane, bool moves_alone)
      : worker_(std::move(worker)), lane_(lane), moves_alone_(moves_alone) {}
  ~MessageCommunicator() override { abandon(); }

  int rank() const override { return worker_->engine().rank(); }
  int world_size() const override { return worker_->engine().world_size(); }
  void perform(const Collective& collective) override {
    start(collective);
    while (!is_done()) wait();
  }
  void abandon() noexcept override { worker_->mover().leave(lane_); }

  bool moves_alone() const override { return moves_alone_; }
  void start(const Collective& collective) override { worker_->mover().start(lane_, collective); }
  bool is_done() override { return worker_->mover().is_done(lane_); }
  void wait() override { worker_->mover().wait(lane_); }
  double seconds() const override { return std::chrono::duration<double>(worker_->engine().messenger().now()).count(); }

 private:
  std::shared_ptr<Worker> worker_;
  std::size_t lane_;
  bool moves_alone_;
};

}  // namespace

void check_message_options(int lanes, std::chrono::milliseconds timeout) {
  if (lanes < 1 || lanes > kMostLanes)
    throw ArgumentError("lanes is " + std::to_string(lanes) + "; it must be from 1 to " + std::to_string(kMostLanes));
  if (timeout.count() < 1)
    throw ArgumentError("a timeout of " + std::to_string(timeout.count()) + " ms; at least 1 ms is needed");
}

std::vector<std::unique_ptr<Communicator>> make_message_communicators(std::unique_ptr<Messenger> messenger, int lanes,
                                                                      std::chrono::milliseconds timeout, std::span<const int> hosts,
                                                                      MovedBy moved_by) {
  check_message_options(lanes, timeout);
  const auto worker = std::make_shared<Worker>(std::move(messenger), static_cast<std::size_t>(lanes), timeout, hosts, moved_by);
  std::vector<std::unique_ptr<Communicator>> group;
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(lanes); ++lane)
    group.push_back(std::make_unique<MessageCommunicator>(worker, lane, moved_by == MovedBy::kThread));
  return group;
}

}  // namespace thinwire
