// A collective becomes a plan of segments. Each goes through a slot, a buffer of the engine's own: messages on their way
// cannot be taken back, so after a failure those buffers live on while the caller's memory is free again. In front of
// every segment stands a header that says which collective it belongs to, so that workers which do not agree find out.
//
// A lane fails for ever. Its worker tells the others, over a channel of its own, so that they need not wait for the timeout.
#include "communicators/message_engine.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "communicators/check_collective.h"
#include "communicators/combine.h"
#include "communicators/message_lane.h"
#include "communicators/transfers.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostLanes = 64;
constexpr auto kShortestNap = std::chrono::microseconds(10);
constexpr auto kLongestNap = std::chrono::microseconds(200);  // 250 KB at 10 Gb/s, which sockets hold
constexpr auto kIdleNap = std::chrono::milliseconds(5);
constexpr auto kPatienceAtClose = std::chrono::milliseconds(300);

class Engine {
 public:
  Engine(std::unique_ptr<Messenger> messenger, int lanes, std::chrono::milliseconds timeout, std::span<const int> hosts)
      : messenger_(std::move(messenger)), groups_(hosts, messenger_->rank(), messenger_->world_size()), timeout_(timeout),
        lanes_(static_cast<std::size_t>(lanes)) {
    if (world_size() == 1) return;
    for (MessageLane& lane : lanes_) {
      lane.slots = std::make_unique_for_overwrite<std::byte[]>(2 * kWindow * kSlotBytes + 64);
      void* memory = lane.slots.get();
      std::size_t space = 2 * kWindow * kSlotBytes + 64;
      auto* next = static_cast<std::byte*>(std::align(64, 2 * kWindow * kSlotBytes, memory, space));
      for (auto* window : {&lane.sending, &lane.receiving})
        for (Slot& slot : *window) slot.memory = std::exchange(next, next + kSlotBytes);
      const auto workers = static_cast<std::size_t>(world_size());
      lane.departed.resize(workers);
      lane.messages_to.resize(workers);
      lane.messages_from.resize(workers);
    }
    notices_ = std::make_unique<std::byte[]>((static_cast<std::size_t>(world_size()) + lanes_.size()) * sizeof(Notice));
    thread_ = std::thread([this] { serve(); });
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  ~Engine() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      for (MessageLane& lane : lanes_) lane.leaving = true;
    }
    wake_.notify_one();
    thread_.join();
    for (MessageLane& lane : lanes_) messenger_->keep(std::move(lane.slots));
    messenger_->keep(std::move(notices_));
  }

  int rank() const { return messenger_->rank(); }
  int world_size() const { return messenger_->world_size(); }

  void perform(std::size_t index, const Collective& collective) {
    check_group(collective, groups_);
    const int members = groups_.size(collective.group);
    check_collective(collective, members);
    copy_own_part(collective);
    MessageLane& lane = lanes_[index];
    std::unique_lock lock(mutex_);
    if (lane.fault.empty() && lane.leaving) lane.fault = "this worker has left the group";
    if (!lane.fault.empty()) throw PeerError(lane.fault);
    if (members == 1 || collective.data.empty()) return;
    lane.asked = &collective;
    wake_.notify_one();
    lane.answered.wait(lock, [&] { return lane.asked == nullptr; });
    if (!lane.succeeded) throw PeerError(lane.fault);
  }

  void leave(std::size_t index) noexcept {
    {
      const std::lock_guard lock(mutex_);
      lanes_[index].leaving = true;
    }
    wake_.notify_one();
  }

 private:
  // What a token names: one slot of a lane, a notice to a worker, or one from a worker.
  enum class Role : std::uint8_t { kSegmentSent, kSegmentReceived, kNoticeSent, kNoticeReceived };
  static Messenger::Token token(Role role, std::size_t lane, std::size_t number) {
    return static_cast<std::uint64_t>(role) | lane << 8 | number << 32;
  }

  int notice_channel() const { return static_cast<int>(lanes_.size()); }

  void copy_own_part(const Collective& collective) const {
    if (collective.data.empty() || collective.result.empty()) return;
    const auto own = static_cast<std::size_t>(groups_.place(collective.group));
    const bool gathers = collective.kind == CollectiveKind::kGather;
    const std::size_t part = gathers ? collective.data.size() : collective.data.size() / groups_.members(collective.group).size();
    std::memcpy(collective.result.data() + own * part, collective.data.data() + (gathers ? 0 : own * part), part);
  }

  // --- the engine's thread

  void serve() noexcept {
    try {
      serve_lanes();
    } catch (const std::exception& error) {  // there is no memory left
      for (MessageLane& lane : lanes_) answer(lane, false, std::string("this worker's communication has ended: ") + error.what());
    }
  }

  void serve_lanes() {
    for (int peer = 0; peer < world_size(); ++peer)
      if (peer != rank()) expect_notice(peer);
    auto nap = kShortestNap;
    std::optional<Clock::time_point> stopped;
    while (true) {
      const bool moved = take_orders() | take_finished();
      bool active = false;
      for (MessageLane& lane : lanes_) {
        if (lane.active) advance(lane);
        active |= lane.active;
      }
      std::unique_lock lock(mutex_);
      if (stopping_ && !stopped) stopped = Clock::now();
      if (stopped && (all_are_told() || Clock::now() - *stopped > kPatienceAtClose)) return;
      nap = moved ? kShortestNap : std::min(2 * nap, kLongestNap);
      if (moved || has_orders()) continue;
      if (active || stopped) wake_.wait_for(lock, nap);
      else wake_.wait_for(lock, kIdleNap);
    }
  }

  bool take_finished() {
    finished_.clear();
    messenger_->poll(finished_);
    for (const Messenger::Finished& each : finished_) finish(each);
    return !finished_.empty();
  }

  // Under the mutex.
  bool has_orders() const {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const MessageLane& lane) { return (lane.asked && !lane.active) || (lane.leaving && !lane.told); });
  }

  bool all_are_told() const {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const MessageLane& lane) { return lane.told && lane.notices_on_their_way == 0; });
  }

  bool take_orders() {
    bool any = false;
    for (MessageLane& lane : lanes_) {
      bool asks = false, leaves = false;
      {
        const std::lock_guard lock(mutex_);
        asks = lane.asked && !lane.active;
        leaves = lane.leaving && !lane.told;
        if (asks) lane.collective = *lane.asked;
        lane.active |= asks;
      }
      if (asks) begin(lane);
      if (leaves && lane.active) fail(lane, "this worker has left the group");
      if (leaves) tell(lane, "");
      any |= asks || leaves;
    }
    return any;
  }

  void begin(MessageLane& lane) {
    const auto members = groups_.members(lane.collective.group);
    const int place = groups_.place(lane.collective.group);
    plan_transfers(lane.collective, place, static_cast<int>(members.size()), lane.plan);
    for (auto* transfers : {&lane.plan.sends, &lane.plan.receives})
      for (Transfer& transfer : *transfers) transfer.peer = members[static_cast<std::size_t>(transfer.peer)];
    lane.next_send = lane.next_receive = lane.sent = lane.received = 0;
    lane.is_received.assign(lane.plan.receives.size(), 0);
    lane.last_progress = Clock::now();
    if (lane.plan.combine_everyones) {
      const auto data = lane.collective.data;
      lane.everyones.resize(data.size() * members.size());
      std::memcpy(lane.everyones.data() + static_cast<std::size_t>(place) * data.size(), data.data(), data.size());
    }
    check_departures(lane);
  }

  // Starts what can be started, and looks whether the lane is done or late.
  void advance(MessageLane& lane) {
    const std::size_t index = static_cast<std::size_t>(&lane - lanes_.data());
    for (std::size_t s = 0; s < kWindow; ++s)
      if (!lane.receiving[s].busy && lane.next_receive < lane.plan.receives.size()) start_receive(lane, index, s);
    for (std::size_t s = 0; s < kWindow; ++s)
      if (!lane.sending[s].busy && may_send(lane)) start_send(lane, index, s);
    if (lane.sent == lane.plan.sends.size() && lane.received == lane.plan.receives.size()) return complete(lane);
    if (Clock::now() - lane.last_progress > timeout_) fail(lane, late_text(lane, rank(), timeout_));
  }

  static bool may_send(const MessageLane& lane) {
    if (lane.next_send == lane.plan.sends.size()) return false;
    const std::size_t after = lane.plan.sends[lane.next_send].after;
    return after == Transfer::kNothing || lane.is_received[after];
  }

  void start_receive(MessageLane& lane, std::size_t index, std::size_t number) {
    Slot& slot = lane.receiving[number];
    slot.transfer = lane.next_receive++;
    slot.busy = true;
    slot.message = lane.messages_from[static_cast<std::size_t>(lane.plan.receives[slot.transfer].peer)]++;
    messenger_->receive(lane.plan.receives[slot.transfer].peer, static_cast<int>(index), {slot.memory, kSlotBytes},
                        token(Role::kSegmentReceived, index, number));
  }

  void start_send(MessageLane& lane, std::size_t index, std::size_t number) {
    Slot& slot = lane.sending[number];
    slot.transfer = lane.next_send++;
    slot.busy = true;
    const Transfer& transfer = lane.plan.sends[slot.transfer];
    const MessageHeader header = header_of(lane, transfer.bytes, lane.messages_to[static_cast<std::size_t>(transfer.peer)]++);
    std::memcpy(slot.memory, &header, sizeof header);
    std::memcpy(slot.memory + sizeof header, lane.collective.data.data() + transfer.offset, transfer.bytes);
    messenger_->send(transfer.peer, static_cast<int>(index), {slot.memory, sizeof header + transfer.bytes},
                     token(Role::kSegmentSent, index, number));
  }

  void finish(const Messenger::Finished& operation) {
    const auto role = static_cast<Role>(operation.token & 0xff);
    const std::size_t number = operation.token >> 32;
    if (role == Role::kNoticeReceived) return read_notice(static_cast<int>(number), operation);
    MessageLane& lane = lanes_[operation.token >> 8 & 0xffffff];
    if (role == Role::kNoticeSent) {
      --lane.notices_on_their_way;
      return;
    }
    const bool sent = role == Role::kSegmentSent;
    Slot& slot = (sent ? lane.sending : lane.receiving)[number];
    slot.busy = false;
    if (!lane.active) return;  // it has failed in the meantime
    const Transfer& transfer = (sent ? lane.plan.sends : lane.plan.receives)[slot.transfer];
    if (!operation.error.empty())
      return fail(lane, "worker " + std::to_string(transfer.peer) + " cannot be reached in a " + describe(lane.collective) +
                            ": " + operation.error);
    lane.last_progress = Clock::now();
    if (sent) ++lane.sent;
    else take(lane, slot, transfer, operation.bytes);
  }

  void take(MessageLane& lane, const Slot& slot, const Transfer& transfer, std::size_t bytes) {
    const MessageHeader expected = header_of(lane, transfer.bytes, slot.message);
    if (bytes != sizeof expected + transfer.bytes || std::memcmp(slot.memory, &expected, sizeof expected) != 0)
      return fail(lane, foreign_text(lane, transfer, slot, bytes, rank()));
    const std::span<const std::byte> segment(slot.memory + sizeof expected, transfer.bytes);
    switch (transfer.into) {
      case Transfer::Into::kData:
        std::ranges::copy(segment, lane.collective.data.data() + transfer.offset);
        break;
      case Transfer::Into::kCombined:
        combine_into(lane.collective.kind, lane.collective.type, lane.collective.data.subspan(transfer.offset, transfer.bytes),
                     segment);
        break;
      case Transfer::Into::kResult:
        std::ranges::copy(segment, lane.collective.result.data() + transfer.offset);
        break;
      case Transfer::Into::kEveryones:
        std::ranges::copy(segment, lane.everyones.data() + transfer.offset);
        break;
    }
    lane.is_received[slot.transfer] = 1;
    ++lane.received;
  }

  void complete(MessageLane& lane) {
    if (lane.plan.combine_everyones) combine_everyones(lane);
    ++lane.completed[lane.group()];
    answer(lane, true, "");
  }

  // In rank order, as between threads.
  void combine_everyones(MessageLane& lane) {
    const auto data = lane.collective.data;
    const std::span<std::byte> total(lane.everyones.data(), data.size());
    for (std::size_t rank = 1; rank < groups_.members(lane.collective.group).size(); ++rank)
      combine_into(lane.collective.kind, lane.collective.type, total,
                   std::span(lane.everyones).subspan(rank * data.size(), data.size()));
    std::ranges::copy(total, data.begin());
  }

  void answer(MessageLane& lane, bool succeeded, const std::string& fault) {
    const std::lock_guard lock(mutex_);
    lane.active = false;
    lane.asked = nullptr;
    lane.succeeded = succeeded;
    if (lane.fault.empty()) lane.fault = fault;
    lane.answered.notify_one();
  }

  // notice: what the others are told
  void fail(MessageLane& lane, const std::string& fault, const std::string& notice) {
    messenger_->give_up();
    answer(lane, false, fault);
    tell(lane, notice);
  }
  void fail(MessageLane& lane, const std::string& fault) { fail(lane, fault, fault); }

  // --- notices

  void tell(MessageLane& lane, const std::string& text) {
    if (std::exchange(lane.told, true)) return;
    const std::size_t index = static_cast<std::size_t>(&lane - lanes_.data());
    Notice notice;
    notice.lane = static_cast<std::int32_t>(index);
    notice.completed = lane.completed;
    text.copy(notice.text, sizeof notice.text - 1);
    const std::span<std::byte> message(notices_.get() + index * sizeof notice, sizeof notice);
    std::memcpy(message.data(), &notice, sizeof notice);
    for (int peer = 0; peer < world_size(); ++peer) {
      if (peer == rank()) continue;
      ++lane.notices_on_their_way;
      messenger_->send(peer, notice_channel(), message, token(Role::kNoticeSent, index, static_cast<std::size_t>(peer)));
    }
  }

  std::span<std::byte> notice_room(int peer) {
    return {notices_.get() + (lanes_.size() + static_cast<std::size_t>(peer)) * sizeof(Notice), sizeof(Notice)};
  }

  void expect_notice(int peer) {
    messenger_->receive(peer, notice_channel(), notice_room(peer),
                        token(Role::kNoticeReceived, 0, static_cast<std::size_t>(peer)));
  }

  // What is no notice, or comes when a worker is lost, is left to the lanes to find out.
  void read_notice(int peer, const Messenger::Finished& operation) {
    if (!operation.error.empty()) return;
    Notice notice;
    if (operation.bytes == sizeof notice) {
      std::memcpy(&notice, notice_room(peer).data(), sizeof notice);
      notice.text[sizeof notice.text - 1] = 0;
      const auto index = static_cast<std::size_t>(notice.lane);
      if (notice.magic == kMagic && index < lanes_.size()) {
        MessageLane& lane = lanes_[index];
        lane.departed[static_cast<std::size_t>(peer)] = notice.completed;
        if (notice.text[0] && reports_.size() < lanes_.size() * lane.departed.size())
          reports_.push_back({index, peer, notice.text});
        if (lane.active) check_departures(lane);
      }
    }
    const auto has_left = [peer](const MessageLane& lane) { return lane.departed[static_cast<std::size_t>(peer)].has_value(); };
    if (!std::ranges::all_of(lanes_, has_left)) expect_notice(peer);
  }

  // A worker that has done its part in this collective may have left since.
  void check_departures(MessageLane& lane) {
    for (const int member : groups_.members(lane.collective.group)) {
      const auto& departed = lane.departed[static_cast<std::size_t>(member)];
      if (lane.active && departed && (*departed)[lane.group()] <= lane.completed_of_group()) fail_after(lane, member);
    }
  }

  void fail_after(MessageLane& lane, int departed) {
    const std::string who = "worker " + std::to_string(departed);
    const auto lane_index = static_cast<std::size_t>(&lane - lanes_.data());
    for (const Report& report : reports_)
      if (report.lane == lane_index && report.peer == departed) return fail(lane, who + " reports: " + report.text, report.text);
    fail(lane, who + " has left the group of " + std::to_string(world_size()) + "; its own error says why");
  }

  struct Report {
    std::size_t lane;
    int peer;
    std::string text;
  };

  const std::unique_ptr<Messenger> messenger_;
  const HostGroups groups_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<MessageLane> lanes_;
  std::unique_ptr<std::byte[]> notices_;  // one of each lane, to be sent, then room for one from each worker
  std::vector<Report> reports_;
  std::vector<Messenger::Finished> finished_;
  std::thread thread_;
};

class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(std::shared_ptr<Engine> engine, std::size_t lane) : engine_(std::move(engine)), lane_(lane) {}
  ~MessageCommunicator() override { abandon(); }

  int rank() const override { return engine_->rank(); }
  int world_size() const override { return engine_->world_size(); }
  void perform(const Collective& collective) override { engine_->perform(lane_, collective); }
  void abandon() noexcept override { engine_->leave(lane_); }

 private:
  std::shared_ptr<Engine> engine_;
  std::size_t lane_;
};

}  // namespace

void check_message_options(int lanes, std::chrono::milliseconds timeout) {
  if (lanes < 1 || lanes > kMostLanes)
    throw ArgumentError("lanes is " + std::to_string(lanes) + "; it must be from 1 to " + std::to_string(kMostLanes));
  if (timeout.count() < 1)
    throw ArgumentError("a timeout of " + std::to_string(timeout.count()) + " ms; at least 1 ms is needed");
}

std::vector<std::unique_ptr<Communicator>> make_message_communicators(std::unique_ptr<Messenger> messenger, int lanes,
                                                                      std::chrono::milliseconds timeout, std::span<const int> hosts) {
  check_message_options(lanes, timeout);
  const auto engine = std::make_shared<Engine>(std::move(messenger), lanes, timeout, hosts);
  std::vector<std::unique_ptr<Communicator>> group;
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(lanes); ++lane)
    group.push_back(std::make_unique<MessageCommunicator>(engine, lane));
  return group;
}

}  // namespace thinwire
