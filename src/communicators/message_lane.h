// A lane of the message engine: the collective at hand, its plan, and the slots that its segments pass through.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "communicators/transfers.h"
#include "core/host_groups.h"
#include "thinwire/collective.h"

namespace thinwire {

inline constexpr std::uint32_t kMagic = 0x54574d31;

// Before a segment; in 64 bytes, so that the segment is aligned.
struct alignas(64) MessageHeader {
  std::uint32_t magic = kMagic;
  CollectiveKind kind{};
  ElementType type{};
  Group group{};
  std::uint8_t unused = 0;
  std::int32_t root = 0;
  std::uint32_t segment = 0;   // bytes that follow
  std::uint64_t sequence = 0;  // number of the collective among those of its group in its lane
  std::uint64_t bytes = 0;     // of the collective's data
  std::uint64_t message = 0;   // number of the message from this worker to that one, in this lane
  std::byte padding[24] = {};
};
static_assert(sizeof(MessageHeader) == 64);

// Collectives of each group that a worker has had its part in.
using Completed = std::array<std::uint64_t, kGroups>;

// "I leave this lane." With a text if this worker saw what went wrong.
struct Notice {
  std::uint32_t magic = kMagic;
  std::int32_t lane = 0;
  std::int32_t from = 0;
  std::int32_t unused = 0;
  Completed completed = {};
  char text[240] = {};
};

inline constexpr std::size_t kSlots = std::max(kBetweenHostsSegments.window, kWithinHostSegments.window);
constexpr std::size_t window_bytes(const Segments& segments) { return segments.window * (sizeof(MessageHeader) + segments.bytes); }
inline constexpr std::size_t kWindowBytes = std::max(window_bytes(kBetweenHostsSegments), window_bytes(kWithinHostSegments));
static_assert(sizeof(MessageHeader) + kBetweenHostsSegments.bytes <= (64 << 10) - 1024, "MPI's own header comes on top");

struct Slot {
  std::byte* memory = nullptr;
  std::size_t transfer = 0;   // index in the plan
  std::uint64_t message = 0;  // received: the number it must have
  bool busy = false;
};

struct MessageLane {
  std::string fault;      // empty, or why the lane is of no further use
  bool active = false;
  bool told = false;      // the others know that this worker has left
  Collective collective;
  Completed completed = {};
  TransferPlan plan;
  std::size_t next_send = 0, next_receive = 0, sent = 0, received = 0;
  std::vector<char> is_received;
  std::vector<std::byte> everyones;
  std::size_t window = 0, slot_bytes = 0;  // slots that the collective uses, in each direction
  std::array<Slot, kSlots> sending, receiving;
  std::unique_ptr<std::byte[]> slots;
  std::chrono::nanoseconds last_progress{};
  std::size_t notices_on_their_way = 0;
  std::vector<std::optional<Completed>> departed;         // by worker: what it had completed
  std::vector<std::uint64_t> messages_to, messages_from;  // by worker: how many so far

  // Of the group at hand.
  std::size_t group() const { return static_cast<std::size_t>(collective.group); }
  std::uint64_t completed_of_group() const { return completed[group()]; }

  // Of the collective that begins. Pre: no slot is busy.
  void divide_slots(const Segments& segments);
};

// What stands before the lane's `message`-th message to or from some worker, of a segment of so many bytes.
MessageHeader header_of(const MessageLane& lane, std::size_t segment, std::uint64_t message);

// Why the lane's collective fails on worker `rank`: nothing has moved for `timeout`.
std::string late_text(const MessageLane& lane, int rank, std::chrono::milliseconds timeout);
// `bytes` were received in `slot` that are not the transfer's.
std::string foreign_text(const MessageLane& lane, const Transfer& transfer, const Slot& slot, std::size_t bytes, int rank);

}  // namespace thinwire
