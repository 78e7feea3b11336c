#include "core/varied.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

// What goes before the first part of every payload.
struct Announcement {
  std::uint32_t length;
  std::uint32_t longest;  // of all that its sender sends
};
static_assert(sizeof(Announcement) == kAnnouncementBytes);

// The first `count` bytes of what is left of a payload, and zeros.
void write_part(std::span<const std::byte> left, std::span<std::byte> part) {
  const auto taken = left.first(std::min(left.size(), part.size()));
  std::ranges::copy(taken, part.begin());
  std::ranges::fill(part.subspan(taken.size()), std::byte{0});
}

std::span<const std::byte> beyond(std::span<const std::byte> payload, std::size_t first) {
  return payload.subspan(std::min(first, payload.size()));
}

// The first round's blocks, one behind the other: an announcement and the first part.
class Blocks {
 public:
  Blocks(PayloadLengths lengths, std::size_t count, Scratch& scratch)
      : lengths_(lengths), all_(scratch.take<std::byte>(count * bytes())) {}

  std::size_t bytes() const { return sizeof(Announcement) + lengths_.usual; }
  std::span<std::byte> all() const { return all_; }
  std::span<std::byte> block(std::size_t i) const { return all_.subspan(i * bytes(), bytes()); }
  std::span<const std::byte> part(std::size_t i) const { return block(i).subspan(sizeof(Announcement)); }

  void write(std::size_t i, std::span<const std::byte> payload, std::size_t longest) const {
    const Announcement announcement{static_cast<std::uint32_t>(payload.size()), static_cast<std::uint32_t>(longest)};
    std::memcpy(block(i).data(), &announcement, sizeof announcement);
    write_part(payload, block(i).subspan(sizeof announcement));
  }

  // Throws PayloadError for a length that is not possible.
  Announcement read(std::size_t rank) const {
    Announcement announcement;
    std::memcpy(&announcement, block(rank).data(), sizeof announcement);
    if (announcement.longest > lengths_.most || announcement.length > announcement.longest)
      throw PayloadError("worker " + std::to_string(rank) + " announces a payload of " + std::to_string(announcement.length) +
                         " bytes, the longest of " + std::to_string(announcement.longest) + "; at most " +
                         std::to_string(lengths_.most) + " are possible");
    return announcement;
  }

 private:
  PayloadLengths lengths_;
  std::span<std::byte> all_;
};

// What all senders together announce, once their blocks are there.
std::size_t longest_announced(const Blocks& received, std::size_t workers) {
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < workers; ++rank) longest = std::max<std::size_t>(longest, received.read(rank).longest);
  return longest;
}

// What a part is filled up with is zeros, so that no byte that was changed on its way is taken for none.
void expect_zeros(std::span<const std::byte> filling, std::size_t rank) {
  if (std::ranges::any_of(filling, [](std::byte byte) { return byte != std::byte{0}; }))
    throw PayloadError("behind the payload of worker " + std::to_string(rank) + " are bytes that it did not send");
}

// Puts the payloads together. rests: what the second round brought, `rest` bytes of each; empty without one.
void assemble(const Blocks& received, PayloadLengths lengths, std::span<const std::byte> rests,
              std::span<std::span<const std::byte>> payloads, Scratch& scratch) {
  const std::size_t rest = rests.size() / payloads.size();
  for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
    const std::size_t length = received.read(rank).length;
    const auto from_rest = rests.subspan(rank * rest, rest).first(length > lengths.usual ? length - lengths.usual : 0);
    expect_zeros(received.part(rank).subspan(std::min(length, lengths.usual)), rank);
    expect_zeros(rests.subspan(rank * rest, rest).subspan(from_rest.size()), rank);
    if (from_rest.empty()) {
      payloads[rank] = received.part(rank).first(length);
    } else if (lengths.usual == 0) {
      payloads[rank] = from_rest;
    } else {
      const auto whole = scratch.take<std::byte>(length);
      std::ranges::copy(from_rest, std::ranges::copy(received.part(rank), whole.begin()).out);
      payloads[rank] = whole;
    }
  }
}

}  // namespace

std::size_t longest_of(std::span<const std::span<const std::byte>> payloads) {
  std::size_t longest = 0;
  for (const auto payload : payloads) longest = std::max(longest, payload.size());
  return longest;
}

void expect_own(std::span<const std::byte> sent, std::span<const std::byte> returned, const char* what) {
  if (!std::ranges::equal(sent, returned))
    throw PayloadError(std::string("the ") + what + " that this worker announced came back changed");
}

Exchange gather_varied(std::span<const std::byte> mine, PayloadLengths lengths, std::span<std::span<const std::byte>> payloads,
                       Context& context) {
  const std::size_t workers = payloads.size();
  const Blocks own(lengths, 1, context.scratch()), received(lengths, workers, context.scratch());
  own.write(0, mine, mine.size());
  Await first = context.gather(own.all(), received.all());
  co_await first;

  const std::size_t longest = longest_announced(received, workers);
  for (std::size_t rank = 0; rank < workers; ++rank)
    if (const Announcement announced = received.read(rank); announced.length != announced.longest)
      throw PayloadError("worker " + std::to_string(rank) + " announces a payload of " + std::to_string(announced.length) +
                         " bytes to all, and one of " + std::to_string(announced.longest));
  expect_own(own.block(0).first(sizeof(Announcement)),
             received.block(static_cast<std::size_t>(context.rank())).first(sizeof(Announcement)), "size");
  std::span<std::byte> rests;
  if (longest > lengths.usual) {
    const auto rest = context.scratch().take<std::byte>(longest - lengths.usual);
    rests = context.scratch().take<std::byte>(rest.size() * workers);
    write_part(beyond(mine, lengths.usual), rest);
    Await second = context.gather(rest, rests);
    co_await second;
  }
  assemble(received, lengths, rests, payloads, context.scratch());
}

Exchange scatter_varied(std::span<const std::span<const std::byte>> shards, PayloadLengths lengths,
                        std::span<std::span<const std::byte>> payloads, std::size_t& longest, Context& context) {
  const std::size_t workers = payloads.size();
  const Blocks own(lengths, workers, context.scratch()), received(lengths, workers, context.scratch());
  longest = longest_of(shards);
  for (std::size_t rank = 0; rank < workers; ++rank) own.write(rank, shards[rank], longest);
  Await first = context.scatter(own.all(), received.all());
  co_await first;

  const auto rank = static_cast<std::size_t>(context.rank());
  // Every sender tells every receiver its longest, so that all know alike whether there is more.
  longest = longest_announced(received, workers);
  expect_own(own.block(rank).first(sizeof(Announcement)), received.block(rank).first(sizeof(Announcement)), "size");
  std::span<std::byte> rests;
  if (longest > lengths.usual) {
    const std::size_t rest = longest - lengths.usual;
    const auto sent = context.scratch().take<std::byte>(rest * workers);
    rests = context.scratch().take<std::byte>(sent.size());
    for (std::size_t to = 0; to < workers; ++to) write_part(beyond(shards[to], lengths.usual), sent.subspan(to * rest, rest));
    Await second = context.scatter(sent, rests);
    co_await second;
  }
  assemble(received, lengths, rests, payloads, context.scratch());
}

}  // namespace thinwire
