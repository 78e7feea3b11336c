#include "communicators/transfers.h"

#include <algorithm>

#include "communicators/parts.h"

namespace thinwire {
namespace {

// Up to this, a ring's many short rounds take longer than sending everything to everyone.
constexpr std::size_t kDirectBytes = 8 << 10;
// Of what is gathered a ring sends no less. It keeps the links full: a worker has one stream to send and one to receive, where several that
// share both a sender's link and a receiver's leave a quarter of them idle.
constexpr std::size_t kDirectGatherBytes = 128 << 10;

class Planner {
 public:
  Planner(const Collective& collective, int rank, int world_size, std::size_t segment_bytes, TransferPlan& plan)
      : bytes_(collective.data.size()), root_(collective.root), rank_(rank), world_size_(world_size), segment_bytes_(segment_bytes), plan_(plan) {
    plan_.sends.clear();
    plan_.receives.clear();
    plan_.sends_result = plan_.combine_everyones = false;
  }

  // In step t a worker passes on what it received in step t - 1, from the result.
  void gather_in_ring() {
    plan_.sends_result = true;
    std::size_t received_before = Transfer::kNothing;
    for (int step = 0; step < world_size_ - 1; ++step) {
      send(worker(rank_ + 1), static_cast<std::size_t>(worker(rank_ - step)) * bytes_, bytes_, received_before);
      received_before = plan_.receives.size();
      receive(worker(rank_ - 1), static_cast<std::size_t>(worker(rank_ - step - 1)) * bytes_, bytes_, Transfer::Into::kResult);
    }
  }

  void gather(Transfer::Into into) {
    for (int step = 1; step < world_size_; ++step) {
      send(worker(rank_ + step), 0, bytes_);
      const int from = worker(rank_ - step);
      receive(from, static_cast<std::size_t>(from) * bytes_, bytes_, into);
    }
  }

  void scatter() {
    const std::size_t shard = bytes_ / static_cast<std::size_t>(world_size_);
    for (int step = 1; step < world_size_; ++step) {
      const int to = worker(rank_ + step), from = worker(rank_ - step);
      send(to, static_cast<std::size_t>(to) * shard, shard);
      receive(from, static_cast<std::size_t>(from) * shard, shard, Transfer::Into::kResult);
    }
  }

  // In step t a worker passes on the part that it received in step t - 1, and in the first W - 1 steps combined.
  void ring() {
    const int right = worker(rank_ + 1), left = worker(rank_ - 1);
    std::size_t received_before = Transfer::kNothing;
    for (int step = 0; step < 2 * (world_size_ - 1); ++step) {
      const Part out = part(rank_ - step), in = part(rank_ - step - 1);
      send(right, out.begin, out.end - out.begin, received_before);
      received_before = plan_.receives.size();
      receive(left, in.begin, in.end - in.begin,
              step < world_size_ - 1 ? Transfer::Into::kCombined : Transfer::Into::kData);
    }
  }

  void chain() {
    const int place = worker(rank_ - root_);
    const bool first = place == 0, last = place == world_size_ - 1;
    if (!first) receive(worker(rank_ - 1), 0, bytes_, Transfer::Into::kData);
    if (!last) send(worker(rank_ + 1), 0, bytes_, first ? Transfer::kNothing : 0);
  }

 private:
  int worker(int number) const { return (number % world_size_ + world_size_) % world_size_; }

  Part part(int number) const {
    return part_of(bytes_, static_cast<std::size_t>(worker(number)), static_cast<std::size_t>(world_size_));
  }

  // after: the receive of the first segment, or nothing
  void send(int peer, std::size_t offset, std::size_t bytes, std::size_t after = Transfer::kNothing) {
    for (std::size_t done = 0; done < bytes; done += segment_bytes_) {
      plan_.sends.push_back({.peer = peer, .offset = offset + done, .bytes = std::min(segment_bytes_, bytes - done), .after = after});
      if (after != Transfer::kNothing) ++after;
    }
  }

  void receive(int peer, std::size_t offset, std::size_t bytes, Transfer::Into into) {
    for (std::size_t done = 0; done < bytes; done += segment_bytes_)
      plan_.receives.push_back({.peer = peer, .offset = offset + done, .bytes = std::min(segment_bytes_, bytes - done), .into = into});
  }

  const std::size_t bytes_;
  const int root_;
  const int rank_;
  const int world_size_;
  const std::size_t segment_bytes_;
  TransferPlan& plan_;
};

bool goes_straight(const Collective& collective) {
  return collective.data.size() <= (collective.kind == CollectiveKind::kGather ? kDirectGatherBytes : kDirectBytes);
}

}  // namespace

int hops_of(const Collective& collective, int world_size) {
  if (collective.data.empty() || world_size == 1) return 0;
  switch (collective.kind) {
    case CollectiveKind::kGather:
      return goes_straight(collective) ? 1 : world_size - 1;
    case CollectiveKind::kScatter:
      return 1;
    case CollectiveKind::kBroadcast:
      return world_size - 1;
    default:
      return goes_straight(collective) ? 1 : 2 * (world_size - 1);
  }
}

void plan_transfers(const Collective& collective, int rank, int world_size, std::size_t segment_bytes, TransferPlan& plan) {
  Planner planner(collective, rank, world_size, segment_bytes, plan);
  if (collective.data.empty() || world_size == 1) return;
  switch (collective.kind) {
    case CollectiveKind::kGather:
      if (!goes_straight(collective)) return planner.gather_in_ring();
      return planner.gather(Transfer::Into::kResult);
    case CollectiveKind::kScatter:
      return planner.scatter();
    case CollectiveKind::kBroadcast:
      return planner.chain();
    default:
      if (!goes_straight(collective)) return planner.ring();
      plan.combine_everyones = true;
      planner.gather(Transfer::Into::kEveryones);
  }
}

}  // namespace thinwire
