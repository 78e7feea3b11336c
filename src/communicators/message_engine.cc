#include "communicators/message_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "communicators/check_collective.h"
#include "communicators/combine.h"
#include "communicators/transfers.h"

namespace thinwire {
namespace {

// What a token names: one slot of a lane, a notice to a worker, or one that comes.
enum class Role : std::uint8_t { kSegmentSent, kSegmentReceived, kNoticeSent, kNoticeReceived };

Messenger::Token token(Role role, std::size_t lane, std::size_t number) {
  return static_cast<std::uint64_t>(role) | lane << 8 | number << 32;
}

bool may_send(const MessageLane& lane) {
  if (lane.next_send == lane.plan.sends.size()) return false;
  const std::size_t after = lane.plan.sends[lane.next_send].after;
  return after == Transfer::kNothing || lane.is_received[after];
}

}  // namespace

MessageEngine::MessageEngine(std::unique_ptr<Messenger> messenger, std::size_t lanes, std::chrono::milliseconds timeout,
                             std::span<const int> hosts)
    : messenger_(std::move(messenger)), groups_(hosts, messenger_->rank(), messenger_->world_size()), timeout_(timeout), lanes_(lanes) {
  if (world_size() == 1) return;
  for (MessageLane& lane : lanes_) {
    lane.slots = std::make_unique_for_overwrite<std::byte[]>(2 * kWindowBytes + alignof(MessageHeader));
    const auto workers = static_cast<std::size_t>(world_size());
    lane.departed.resize(workers);
    lane.messages_to.resize(workers);
    lane.messages_from.resize(workers);
  }
  notices_ = std::make_unique<std::byte[]>((lanes_.size() + 1) * sizeof(Notice));
  expect_notice();
}

MessageEngine::~MessageEngine() {
  for (MessageLane& lane : lanes_)
    if (lane.slots) messenger_->keep(std::move(lane.slots));
  if (notices_) messenger_->keep(std::move(notices_));
}

bool MessageEngine::any_active() const { return std::ranges::any_of(lanes_, &MessageLane::active); }

bool MessageEngine::all_are_told() const {
  return std::ranges::all_of(lanes_, [](const MessageLane& lane) { return lane.told && lane.notices_on_their_way == 0; });
}

bool MessageEngine::prepare(const Collective& collective) const {
  check_group(collective, groups_);
  const int members = groups_.size(collective.group);
  check_collective(collective, members);
  if (collective.data.empty()) return false;
  if (!collective.result.empty()) {
    const auto own = static_cast<std::size_t>(groups_.place(collective.group));
    const bool gathers = collective.kind == CollectiveKind::kGather;
    const std::size_t part = gathers ? collective.data.size() : collective.data.size() / static_cast<std::size_t>(members);
    std::memcpy(collective.result.data() + own * part, collective.data.data() + (gathers ? 0 : own * part), part);
  }
  return members > 1;
}

void MessageEngine::begin(std::size_t index, const Collective& collective) {
  MessageLane& lane = lanes_[index];
  lane.active = true;
  lane.collective = collective;
  const auto members = groups_.members(collective.group);
  const int place = groups_.place(collective.group);
  const bool within_host = collective.group == Group::kWithinHost || messenger_->is_within_host();
  const Segments segments = within_host ? kWithinHostSegments : kBetweenHostsSegments;
  lane.divide_slots(segments);
  plan_transfers(collective, place, static_cast<int>(members.size()), segments.bytes, lane.plan);
  for (auto* transfers : {&lane.plan.sends, &lane.plan.receives})
    for (Transfer& transfer : *transfers) transfer.peer = members[static_cast<std::size_t>(transfer.peer)];
  lane.next_send = lane.next_receive = lane.sent = lane.received = 0;
  lane.is_received.assign(lane.plan.receives.size(), 0);
  lane.last_progress = messenger_->now();
  if (lane.plan.combine_everyones) {
    const auto data = collective.data;
    lane.everyones.resize(data.size() * members.size());
    std::memcpy(lane.everyones.data() + static_cast<std::size_t>(place) * data.size(), data.data(), data.size());
  }
  check_departures(lane);
}

void MessageEngine::leave(std::size_t index) {
  MessageLane& lane = lanes_[index];
  if (lane.active) fail(lane, "this worker has left the group");
  if (lane.fault.empty()) lane.fault = "this worker has left the group";
  tell(lane, "");
}

bool MessageEngine::progress() {
  finished_.clear();
  if (world_size() > 1) messenger_->poll(finished_);
  for (const Messenger::Finished& each : finished_) finish(each);
  for (MessageLane& lane : lanes_)
    if (lane.active) advance(lane);
  return !finished_.empty();
}

// Starts what can be started, and looks whether the lane is done or late.
void MessageEngine::advance(MessageLane& lane) {
  for (std::size_t s = 0; s < lane.window; ++s)
    if (!lane.receiving[s].busy && lane.next_receive < lane.plan.receives.size()) start_receive(lane, s);
  for (std::size_t s = 0; s < lane.window; ++s)
    if (!lane.sending[s].busy && may_send(lane)) start_send(lane, s);
  if (lane.sent == lane.plan.sends.size() && lane.received == lane.plan.receives.size()) return complete(lane);
  if (messenger_->now() - lane.last_progress > timeout_) fail(lane, late_text(lane, rank(), timeout_));
}

void MessageEngine::start_receive(MessageLane& lane, std::size_t number) {
  Slot& slot = lane.receiving[number];
  slot.transfer = lane.next_receive++;
  slot.busy = true;
  slot.message = lane.messages_from[static_cast<std::size_t>(lane.plan.receives[slot.transfer].peer)]++;
  const Transfer& transfer = lane.plan.receives[slot.transfer];
  const std::span<std::byte> place = place_of(lane, transfer);
  const std::size_t head = place.empty() ? lane.slot_bytes : sizeof(MessageHeader);
  messenger_->receive(transfer.peer, static_cast<int>(index_of(lane)), {slot.memory, head}, place,
                      token(Role::kSegmentReceived, index_of(lane), number));
}

void MessageEngine::start_send(MessageLane& lane, std::size_t number) {
  Slot& slot = lane.sending[number];
  slot.transfer = lane.next_send++;
  slot.busy = true;
  const Transfer& transfer = lane.plan.sends[slot.transfer];
  const MessageHeader header = header_of(lane, transfer.bytes, lane.messages_to[static_cast<std::size_t>(transfer.peer)]++);
  std::memcpy(slot.memory, &header, sizeof header);
  const std::span<const std::byte> source = lane.plan.sends_result ? lane.collective.result : lane.collective.data;
  std::span<const std::byte> rest = source.subspan(transfer.offset, transfer.bytes);
  std::size_t head = sizeof header;
  if (!messenger_->can_forget()) {
    std::ranges::copy(rest, slot.memory + head);
    head += rest.size();
    rest = {};
  }
  messenger_->send(transfer.peer, static_cast<int>(index_of(lane)), {slot.memory, head}, rest,
                   token(Role::kSegmentSent, index_of(lane), number));
}

void MessageEngine::finish(const Messenger::Finished& operation) {
  const auto role = static_cast<Role>(operation.token & 0xff);
  const std::size_t number = operation.token >> 32;
  if (role == Role::kNoticeReceived) return read_notice(operation);
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
    return fail(lane, "worker " + std::to_string(transfer.peer) + " cannot be reached in a " + describe(lane.collective) + ": " +
                          operation.error);
  lane.last_progress = messenger_->now();
  if (sent) ++lane.sent;
  else take(lane, slot, transfer, operation.bytes);
}

// Where a received segment belongs.
std::span<std::byte> MessageEngine::target_of(MessageLane& lane, const Transfer& transfer) {
  const bool into_result = transfer.into == Transfer::Into::kResult, into_everyones = transfer.into == Transfer::Into::kEveryones;
  const std::span<std::byte> memory = into_result      ? lane.collective.result
                                      : into_everyones ? std::span(lane.everyones)
                                                       : lane.collective.data;
  return memory.subspan(transfer.offset, transfer.bytes);
}

// Where it can be received at once; else it goes through its slot.
std::span<std::byte> MessageEngine::place_of(MessageLane& lane, const Transfer& transfer) const {
  const bool replaces = transfer.into != Transfer::Into::kCombined;
  return replaces && messenger_->can_forget() ? target_of(lane, transfer) : std::span<std::byte>();
}

void MessageEngine::take(MessageLane& lane, const Slot& slot, const Transfer& transfer, std::size_t bytes) {
  const MessageHeader expected = header_of(lane, transfer.bytes, slot.message);
  if (bytes != sizeof expected + transfer.bytes || std::memcmp(slot.memory, &expected, sizeof expected) != 0)
    return fail(lane, foreign_text(lane, transfer, slot, bytes, rank()));
  const std::span<const std::byte> segment(slot.memory + sizeof expected, transfer.bytes);
  const std::span<std::byte> target = target_of(lane, transfer);
  if (transfer.into == Transfer::Into::kCombined) combine_into(lane.collective.kind, lane.collective.type, target, segment);
  else if (place_of(lane, transfer).empty()) std::ranges::copy(segment, target.begin());
  lane.is_received[slot.transfer] = 1;
  ++lane.received;
}

void MessageEngine::complete(MessageLane& lane) {
  if (lane.plan.combine_everyones) combine_everyones(lane);
  ++lane.completed[lane.group()];
  lane.active = false;
}

// In rank order, as between threads.
void MessageEngine::combine_everyones(MessageLane& lane) const {
  const auto data = lane.collective.data;
  const std::span<std::byte> total(lane.everyones.data(), data.size());
  for (std::size_t rank = 1; rank < groups_.members(lane.collective.group).size(); ++rank)
    combine_into(lane.collective.kind, lane.collective.type, total, std::span(lane.everyones).subspan(rank * data.size(), data.size()));
  std::ranges::copy(total, data.begin());
}

void MessageEngine::fail(MessageLane& lane, const std::string& fault, const std::string& notice) {
  messenger_->give_up();
  messenger_->forget(static_cast<int>(index_of(lane)));
  lane.active = false;
  if (lane.fault.empty()) lane.fault = fault;
  tell(lane, notice);
}

// --- notices

void MessageEngine::tell(MessageLane& lane, const std::string& text) {
  if (std::exchange(lane.told, true) || world_size() == 1) return;
  const std::size_t index = index_of(lane);
  Notice notice;
  notice.lane = static_cast<std::int32_t>(index);
  notice.from = rank();
  notice.completed = lane.completed;
  text.copy(notice.text, sizeof notice.text - 1);
  const std::span<std::byte> message(notices_.get() + index * sizeof notice, sizeof notice);
  std::memcpy(message.data(), &notice, sizeof notice);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank()) continue;
    ++lane.notices_on_their_way;
    messenger_->send(peer, notice_channel(), message, {}, token(Role::kNoticeSent, index, static_cast<std::size_t>(peer)));
  }
}

void MessageEngine::expect_notice() {
  messenger_->receive(Messenger::kAnyone, notice_channel(), {notices_.get() + lanes_.size() * sizeof(Notice), sizeof(Notice)}, {},
                      token(Role::kNoticeReceived, 0, 0));
}

// What is no notice, or comes when a worker is lost, is left to the lanes to find out.
void MessageEngine::read_notice(const Messenger::Finished& operation) {
  Notice notice;
  if (operation.error.empty() && operation.bytes == sizeof notice) {
    std::memcpy(&notice, notices_.get() + lanes_.size() * sizeof notice, sizeof notice);
    notice.text[sizeof notice.text - 1] = 0;
    const auto index = static_cast<std::size_t>(notice.lane), from = static_cast<std::size_t>(notice.from);
    if (notice.magic == kMagic && index < lanes_.size() && from < lanes_[index].departed.size()) {
      MessageLane& lane = lanes_[index];
      lane.departed[from] = notice.completed;
      if (notice.text[0] && reports_.size() < lanes_.size() * lane.departed.size()) reports_.push_back({index, notice.from, notice.text});
      if (lane.active) check_departures(lane);
    }
  } else if (++spoilt_notices_ > world_size()) {
    return;  // the channel is of no use
  }
  const auto all_have_left = [this](const MessageLane& lane) {
    return std::ranges::count_if(lane.departed, [](const auto& departed) { return departed.has_value(); }) == world_size() - 1;
  };
  if (!std::ranges::all_of(lanes_, all_have_left)) expect_notice();
}

// A worker that has done its part in this collective may have left since.
void MessageEngine::check_departures(MessageLane& lane) {
  for (const int member : groups_.members(lane.collective.group)) {
    const auto& departed = lane.departed[static_cast<std::size_t>(member)];
    if (lane.active && departed && (*departed)[lane.group()] <= lane.completed_of_group()) fail_after(lane, member);
  }
}

void MessageEngine::fail_after(MessageLane& lane, int departed) {
  const std::string who = "worker " + std::to_string(departed);
  for (const Report& report : reports_)
    if (report.lane == index_of(lane) && report.peer == departed) return fail(lane, who + " reports: " + report.text, report.text);
  fail(lane, who + " has left the group of " + std::to_string(world_size()) + "; its own error says why");
}

}  // namespace thinwire
