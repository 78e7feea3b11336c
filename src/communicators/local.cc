// Workers as threads of one process.
//
// A collective has three stages. Meeting: every worker posts its spans at the hub, under a mutex. Moving: once all have
// posted the same collective, each combines or copies its part of the data, without a lock. Leaving: a worker returns
// when all have done their part, for until then others may touch its spans.
//
// Workers may fail only while they meet: then nobody has touched any span, and the hub is broken for ever, so nobody
// will. Once moving has begun all workers are in this process, in this code, and done soon; it is never broken off.
#include <algorithm>
#include <condition_variable>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "communicators/check_collective.h"
#include "communicators/combine.h"
#include "communicators/parts.h"
#include "core/host_groups.h"
#include "thinwire/communicator.h"
#include "thinwire/errors.h"

namespace thinwire {

double Communicator::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
namespace {

void copy(std::span<const std::byte> from, std::byte* to) noexcept {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

// Does worker `rank`'s part of what all workers posted.
void move_data(std::span<const Collective> posted, std::size_t rank) noexcept {
  const Collective& mine = posted[rank];
  const std::size_t workers = posted.size();
  const std::size_t bytes = mine.data.size();
  switch (mine.kind) {
    case CollectiveKind::kGather:
      for (std::size_t r = 0; r < workers; ++r) copy(posted[r].data, mine.result.data() + r * bytes);
      return;
    case CollectiveKind::kScatter:
      for (std::size_t r = 0; r < workers; ++r) {
        const std::size_t shard = bytes / workers;
        copy(posted[r].data.subspan(rank * shard, shard), mine.result.data() + r * shard);
      }
      return;
    case CollectiveKind::kBroadcast:
      if (rank != static_cast<std::size_t>(mine.root)) copy(posted[mine.root].data, mine.data.data());
      return;
    default:
      if (workers == 1) return;
      const Part part = part_of(bytes, rank, workers);
      const std::size_t element = element_bytes(mine.type);
      combine(posted, part.begin / element, part.end / element);
  }
}

bool same(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.type == b.type && a.data.size() == b.data.size() &&
         (a.kind != CollectiveKind::kBroadcast || a.root == b.root);
}

class Hub {
 public:
  // members: ranks, for what it says of them.
  Hub(std::span<const int> members, std::chrono::milliseconds timeout)
      : timeout_(timeout), members_(members.begin(), members.end()), posted_(members.size()), present_(members.size(), false) {}

  void perform(std::size_t rank, const Collective& collective) {
    check_collective(collective, static_cast<int>(posted_.size()));
    meet(rank, collective);
    move_data(posted_, rank);
    leave();
  }

  void abandon(std::size_t rank) noexcept {
    const std::lock_guard lock(mutex_);
    if (fault_ == Fault::kNone) break_with(Fault::kAbandoned, rank);
  }

 private:
  enum class Fault { kNone, kAbandoned, kLate, kMismatch };

  void meet(std::size_t rank, const Collective& collective) {
    std::unique_lock lock(mutex_);
    if (fault_ != Fault::kNone) throw PeerError(fault_text());
    posted_[rank] = collective;
    present_[rank] = true;
    if (++met_ == posted_.size()) {
      if (!all_same()) break_with(Fault::kMismatch, rank);
      else begin_moving();
    }
    const auto settled = [this] { return moving_ || fault_ != Fault::kNone; };
    if (!changed_.wait_for(lock, timeout_, settled)) break_with(Fault::kLate, rank);
    if (!moving_) throw PeerError(fault_text());  // a fault that came after moving had begun waits for the next call
  }

  void leave() {
    std::unique_lock lock(mutex_);
    if (--moving_workers_ == 0) {
      moving_ = false;
      ++collectives_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [this, mine = collectives_] { return collectives_ != mine; });
  }

  void begin_moving() {
    moving_ = true;
    moving_workers_ = posted_.size();
    met_ = 0;
    std::fill(present_.begin(), present_.end(), false);
    changed_.notify_all();
  }

  // From here on nothing is posted any more: posted_ and present_ stay as they are, for fault_text().
  void break_with(Fault fault, std::size_t rank) noexcept {
    fault_ = fault;
    fault_rank_ = rank;
    changed_.notify_all();
  }

  bool all_same() const {
    return std::all_of(posted_.begin(), posted_.end(), [this](const Collective& c) { return same(c, posted_[0]); });
  }

  std::string fault_text() const {
    switch (fault_) {
      case Fault::kAbandoned:
        return worker(fault_rank_) + " has left the group of " + std::to_string(members_.size()) + "; its own error says why";
      case Fault::kLate:
        return "worker " + missing_workers() + " did not join a " + describe(posted_[fault_rank_]) + " within " +
               std::to_string(timeout_.count()) + " ms, in which " + worker(fault_rank_) + " waited";
      default:
        return "workers issued different collectives:" + all_posted();
    }
  }

  std::string worker(std::size_t rank) const { return "worker " + std::to_string(members_[rank]); }

  std::string missing_workers() const {
    std::string text;
    for (std::size_t r = 0; r < present_.size(); ++r)
      if (!present_[r]) text += (text.empty() ? "" : ", ") + std::to_string(members_[r]);
    return text;
  }

  std::string all_posted() const {
    std::string text;
    for (std::size_t r = 0; r < posted_.size(); ++r)
      text += (r == 0 ? " " : "; ") + worker(r) + " a " + describe(posted_[r]);
    return text;
  }

  const std::chrono::milliseconds timeout_;
  const std::vector<int> members_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Collective> posted_;  // written under the mutex while meeting, read by all while moving
  std::vector<bool> present_;
  std::size_t met_ = 0;
  bool moving_ = false;
  std::size_t moving_workers_ = 0;
  std::uint64_t collectives_ = 0;
  Fault fault_ = Fault::kNone;
  std::size_t fault_rank_ = 0;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(const HostGroups& groups, const std::array<std::shared_ptr<Hub>, kGroups>& hubs) : groups_(groups), hubs_(hubs) {}
  ~LocalCommunicator() override { abandon(); }

  int rank() const override { return groups_.place(Group::kAll); }
  int world_size() const override { return groups_.size(Group::kAll); }

  void perform(const Collective& collective) override {
    check_group(collective, groups_);
    hubs_[static_cast<std::size_t>(collective.group)]->perform(static_cast<std::size_t>(groups_.place(collective.group)), collective);
  }

  void abandon() noexcept override {
    for (const Group group : {Group::kAll, Group::kWithinHost, Group::kBetweenHosts})
      hubs_[static_cast<std::size_t>(group)]->abandon(static_cast<std::size_t>(groups_.place(group)));
  }

 private:
  HostGroups groups_;
  std::array<std::shared_ptr<Hub>, kGroups> hubs_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int world_size, std::chrono::milliseconds timeout,
                                                                    std::span<const int> hosts) {
  if (world_size < 1) throw ArgumentError("a group of " + std::to_string(world_size) + " workers; at least 1 is needed");
  if (timeout.count() < 1)
    throw ArgumentError("a timeout of " + std::to_string(timeout.count()) + " ms; at least 1 ms is needed");
  timeout = std::min(timeout, std::chrono::milliseconds(std::chrono::years(1)));  // a deadline must not overflow
  std::map<std::pair<Group, int>, std::shared_ptr<Hub>> hubs;  // by what they are for, and the first of their members
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < world_size; ++rank) {
    const HostGroups groups(hosts, rank, world_size);
    std::array<std::shared_ptr<Hub>, kGroups> its;
    for (const Group each : {Group::kAll, Group::kWithinHost, Group::kBetweenHosts}) {
      std::shared_ptr<Hub>& hub = hubs[{each, groups.members(each).front()}];
      if (!hub) hub = std::make_shared<Hub>(groups.members(each), timeout);
      its[static_cast<std::size_t>(each)] = hub;
    }
    group.push_back(std::make_unique<LocalCommunicator>(groups, its));
  }
  return group;
}

}  // namespace thinwire
