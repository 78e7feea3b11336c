#include "communicators/message_lane.h"

#include <cstring>
#include <memory>
#include <utility>

#include "communicators/check_collective.h"

namespace thinwire {

void MessageLane::divide_slots(const Segments& segments) {
  window = segments.window;
  slot_bytes = sizeof(MessageHeader) + segments.bytes;
  void* memory = slots.get();
  std::size_t space = 2 * kWindowBytes + alignof(MessageHeader);
  auto* next = static_cast<std::byte*>(std::align(alignof(MessageHeader), 2 * kWindowBytes, memory, space));
  for (auto* slots_of_direction : {&sending, &receiving})
    for (std::size_t s = 0; s < window; ++s) (*slots_of_direction)[s].memory = std::exchange(next, next + slot_bytes);
}

MessageHeader header_of(const MessageLane& lane, std::size_t segment, std::uint64_t message) {
  MessageHeader header;
  header.kind = lane.collective.kind;
  header.type = lane.collective.type;
  header.group = lane.collective.group;
  header.root = lane.collective.kind == CollectiveKind::kBroadcast ? lane.collective.root : 0;
  header.segment = static_cast<std::uint32_t>(segment);
  header.sequence = lane.completed_of_group();
  header.bytes = lane.collective.data.size();
  header.message = message;
  return header;
}

std::string late_text(const MessageLane& lane, int rank, std::chrono::milliseconds timeout) {
  const bool receives = lane.received < lane.plan.receives.size();
  const auto& transfers = receives ? lane.plan.receives : lane.plan.sends;
  const auto& window = receives ? lane.receiving : lane.sending;
  std::string peers;
  for (const Slot& slot : window) {
    if (!slot.busy) continue;
    const std::string peer = std::to_string(transfers[slot.transfer].peer);
    if (peers.find(peer) == std::string::npos) peers += (peers.empty() ? "" : ", ") + peer;
  }
  return "worker " + peers + (receives ? " sent" : " took") + " nothing for " + std::to_string(timeout.count()) + " ms in a " +
         describe(lane.collective) + ", in which worker " + std::to_string(rank) + " waited; a worker is lost, stopped or late";
}

std::string foreign_text(const MessageLane& lane, const Transfer& transfer, const Slot& slot, std::size_t bytes, int rank) {
  const std::string who = "worker " + std::to_string(transfer.peer);
  const std::string mine = describe(lane.collective) + ", the group's " + std::to_string(lane.completed_of_group());
  MessageHeader header;
  if (bytes >= sizeof header) std::memcpy(&header, slot.memory, sizeof header);
  const bool known = header.kind <= CollectiveKind::kBroadcast && header.type <= ElementType::kUint8 &&
                     header.group <= Group::kBetweenHosts;
  if (bytes < sizeof header || header.magic != kMagic || !known)
    return who + " sent " + std::to_string(bytes) + " bytes that are no part of a " + mine;
  const MessageHeader expected = header_of(lane, transfer.bytes, slot.message);
  if (header.sequence != expected.sequence || header.kind != expected.kind || header.type != expected.type ||
      header.bytes != expected.bytes || header.root != expected.root || header.group != expected.group)
    return "workers issued different collectives: " + who + " a " +
           describe(header.kind, header.type, header.bytes, header.root) + ", its " + std::to_string(header.sequence) +
           "; worker " + std::to_string(rank) + " a " + mine;
  if (header.message != expected.message)
    return who + "'s message " + std::to_string(header.message) + " came where " + std::to_string(expected.message) +
           " belongs, in a " + mine;
  return who + " sent a segment of " + std::to_string(bytes - sizeof header) + " bytes where " + std::to_string(transfer.bytes) +
         " belong, in a " + mine;
}

}  // namespace thinwire
