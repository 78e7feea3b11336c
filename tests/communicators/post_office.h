// Messages between threads of one process, and what can go wrong with them.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include "communicators/message_communicators.h"
#include "worker_threads.h"

namespace thinwire {

// Where letters lie until they are fetched.
class PostOffice {
 public:
  using Letter = std::vector<std::byte>;
  // May change a letter on its way; false: it is lost. Called under the lock, so one at a time.
  using Censor = std::function<bool(int from, int to, int channel, Letter& letter)>;

  explicit PostOffice(Censor censor = {}) : censor_(std::move(censor)) {}

  void post(int from, int to, int channel, Letter letter) {
    const std::lock_guard lock(mutex_);
    if (!censor_ || censor_(from, to, channel, letter)) boxes_[{from, to, channel}].push_back(std::move(letter));
  }

  bool fetch(int from, int to, int channel, Letter& letter) {
    const std::lock_guard lock(mutex_);
    if (from == Messenger::kAnyone) {
      const auto full = std::ranges::find_if(boxes_, [&](const auto& box) {
        return std::get<1>(box.first) == to && std::get<2>(box.first) == channel && !box.second.empty();
      });
      if (full == boxes_.end()) return false;
      from = std::get<0>(full->first);
    }
    auto& box = boxes_[{from, to, channel}];
    if (box.empty()) return false;
    letter = std::move(box.front());
    box.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  Censor censor_;
  std::map<std::tuple<int, int, int>, std::deque<Letter>> boxes_;
};

class PostMessenger : public Messenger {
 public:
  PostMessenger(std::shared_ptr<PostOffice> office, int rank, int world_size)
      : office_(std::move(office)), rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  void send(int peer, int channel, std::span<const std::byte> message, std::span<const std::byte>, Token token) override {
    office_->post(rank_, peer, channel, {message.begin(), message.end()});
    finished_.push_back({token, 0, ""});
  }
  void receive(int peer, int channel, std::span<std::byte> room, std::span<std::byte>, Token token) override {
    waiting_.push_back({peer, channel, room, token});
  }

  void poll(std::vector<Finished>& finished) override {
    finished.insert(finished.end(), finished_.begin(), finished_.end());
    finished_.clear();
    std::set<std::pair<int, int>> empty;  // boxes; a letter that comes just now belongs to the first who waited
    std::erase_if(waiting_, [&](const Receive& receive) {
      PostOffice::Letter letter;
      if (empty.contains({receive.peer, receive.channel})) return false;
      if (!office_->fetch(receive.peer, rank_, receive.channel, letter)) {
        empty.insert({receive.peer, receive.channel});
        return false;
      }
      const bool fits = letter.size() <= receive.room.size();
      if (fits) std::ranges::copy(letter, receive.room.begin());
      finished.push_back({receive.token, letter.size(), fits ? "" : "the message is longer than its room"});
      return true;
    });
  }

  void give_up() noexcept override {}
  void keep(std::unique_ptr<std::byte[]>) noexcept override {}

 private:
  struct Receive {
    int peer;
    int channel;
    std::span<std::byte> room;
    Token token;
  };
  std::shared_ptr<PostOffice> office_;
  int rank_;
  int world_size_;
  std::vector<Receive> waiting_;
  std::vector<Finished> finished_;
};

// By worker, then by lane.
inline std::vector<Ends> make_posting_lanes(int world_size, int lanes,
                                             std::chrono::milliseconds timeout = std::chrono::minutes(5),
                                             PostOffice::Censor censor = {}, std::span<const int> hosts = {},
                                             MovedBy moved_by = MovedBy::kThread) {
  const auto office = std::make_shared<PostOffice>(std::move(censor));
  std::vector<Ends> workers;
  for (int rank = 0; rank < world_size; ++rank)
    workers.push_back(
        make_message_communicators(std::make_unique<PostMessenger>(office, rank, world_size), lanes, timeout, hosts, moved_by));
  return workers;
}

inline Ends make_posting_communicators(int world_size, std::chrono::milliseconds timeout = std::chrono::minutes(5),
                                       PostOffice::Censor censor = {}, std::span<const int> hosts = {},
                                       MovedBy moved_by = MovedBy::kThread) {
  Ends group;
  for (Ends& worker : make_posting_lanes(world_size, 1, timeout, std::move(censor), hosts, moved_by))
    group.push_back(std::move(worker[0]));
  return group;
}

}  // namespace thinwire
