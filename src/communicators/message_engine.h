// Collectives made of messages: what one worker does for its lanes, step by step and without waiting.
//
// A collective becomes a plan of segments. Each goes through a slot, a buffer of the engine's own: where messages on their way
// cannot be taken back, those buffers live on after a failure while the caller's memory is free again. In front of
// every segment stands a header that says which collective it belongs to, so that workers which do not agree find out.
//
// A lane fails for ever. Its worker tells the others, over a channel of its own, so that they need not wait for the timeout.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "communicators/message_lane.h"
#include "communicators/messenger.h"
#include "core/host_groups.h"
#include "thinwire/collective.h"

namespace thinwire {

// Called by one thread at a time. Whoever has begun something calls progress() until it is done; time is the messenger's.
class MessageEngine {
 public:
  // hosts: as in ReducerOptions. A collective in which nothing moves for `timeout` fails.
  MessageEngine(std::unique_ptr<Messenger> messenger, std::size_t lanes, std::chrono::milliseconds timeout, std::span<const int> hosts);
  ~MessageEngine();
  MessageEngine(const MessageEngine&) = delete;
  MessageEngine& operator=(const MessageEngine&) = delete;

  int rank() const { return messenger_->rank(); }
  int world_size() const { return messenger_->world_size(); }
  Messenger& messenger() { return *messenger_; }
  std::size_t lanes() const { return lanes_.size(); }

  // Does what of a collective is this worker's alone; whether anything is left to be moved. For any thread. Throws ArgumentError.
  bool prepare(const Collective& collective) const;

  // A lane without a fault begins a collective, and is active until that is done or has failed.
  void begin(std::size_t lane, const Collective& collective);
  bool is_active(std::size_t lane) const { return lanes_[lane].active; }
  bool any_active() const;
  const std::string& fault(std::size_t lane) const { return lanes_[lane].fault; }

  // This worker issues no more collectives in this lane: the others are told, and what is on its way fails.
  void leave(std::size_t lane);
  // Whether all lanes were left, and all others told.
  bool all_are_told() const;

  // Moves what can be moved now; whether that was anything.
  bool progress();

 private:
  struct Report {
    std::size_t lane;
    int peer;
    std::string text;
  };

  int notice_channel() const { return static_cast<int>(lanes_.size()); }
  std::size_t index_of(const MessageLane& lane) const { return static_cast<std::size_t>(&lane - lanes_.data()); }

  void advance(MessageLane& lane);
  void start_receive(MessageLane& lane, std::size_t slot);
  void start_send(MessageLane& lane, std::size_t slot);
  void finish(const Messenger::Finished& operation);
  static std::span<std::byte> target_of(MessageLane& lane, const Transfer& transfer);
  std::span<std::byte> place_of(MessageLane& lane, const Transfer& transfer) const;
  void take(MessageLane& lane, const Slot& slot, const Transfer& transfer, std::size_t bytes);
  void complete(MessageLane& lane);
  void combine_everyones(MessageLane& lane) const;
  // notice: what the others are told
  void fail(MessageLane& lane, const std::string& fault, const std::string& notice);
  void fail(MessageLane& lane, const std::string& fault) { fail(lane, fault, fault); }

  void tell(MessageLane& lane, const std::string& text);
  void expect_notice();
  void read_notice(const Messenger::Finished& operation);
  void check_departures(MessageLane& lane);
  void fail_after(MessageLane& lane, int departed);

  const std::unique_ptr<Messenger> messenger_;
  const HostGroups groups_;
  const std::chrono::milliseconds timeout_;
  std::vector<MessageLane> lanes_;
  std::unique_ptr<std::byte[]> notices_;  // one of each lane, to be sent, then room for one that comes
  int spoilt_notices_ = 0;
  std::vector<Report> reports_;
  std::vector<Messenger::Finished> finished_;
};

}  // namespace thinwire
