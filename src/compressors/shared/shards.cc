#include "compressors/shared/shards.h"

#include <numeric>

#include "core/aligned.h"
#include "kernels/rows.h"

namespace thinwire {

void OwnShards::average(std::span<const ReceivedMessage> received, std::size_t i, bool only_used, std::span<std::span<const std::byte>> codes,
                        std::span<float> mean, std::span<std::byte> room) const {
  const float weight = 1.0f / static_cast<float>(received.size());
  const auto counts = [&](std::size_t rank) { return !only_used || received[rank].used(i); };
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < received.size(); ++rank)
    if (counts(rank) && !is_added(rank)) codes[count++] = received[rank].code(i);
  if (count > 0)
    shards_.codec().decode_sum(codes.first(count), *owned()[i], weight, mean, room);
  else
    std::ranges::fill(mean, 0.0f);
  if (is_added(rank_) && counts(rank_)) kernels::add_scaled(mean, values(i), weight);
}

std::optional<double> OwnersMessages::unpack(const Readings& readings, Context& context) {
  const Codec& codec = shards_.codec();
  if (codec.has_fixed_length() || !readings.finite) return readings.largest;  // every piece is of one owner
  if (!codec.unpacks_codes()) return std::nullopt;
  const PieceParts parts(shards_.pieces().size(), context, [&](std::size_t place) {
    return whole_lines(codec.unpacked_bytes(*shards_.pieces()[place], code(place).size()));
  });
  const auto memory = context.scratch().take<std::byte>(parts.count());
  const auto largest = context.scratch().take<float>(shards_.pieces().size());
  unpacked_ = context.scratch().take<std::span<std::byte>>(shards_.pieces().size());
  context.threads().for_each(largest.size(), shards_.elements(), [&](std::size_t place, std::size_t thread) {
    unpacked_[place] = parts.of(memory, place);
    largest[place] = used(place) ? codec.unpack(code(place), *shards_.pieces()[place], unpacked_[place], rooms_.of(thread)) : 0;
  });
  return std::accumulate(largest.begin(), largest.end(), 0.0, [](double all, float one) { return std::max(all, double{one}); });
}

Exchange send_to_owners(const Shards& shards, const OwnShards& own, std::span<std::span<const std::byte>> payloads,
                        std::span<ReceivedMessage>& received, Context& context) {
  Scratch& scratch = context.scratch();
  if (shards.codec().has_fixed_length()) {
    const auto all = scratch.take<std::byte>(own.memory().size());
    Await round = context.scatter(own.memory(), all);
    co_await round;
    for (std::size_t rank = 0; rank < payloads.size(); ++rank)
      payloads[rank] = all.subspan(rank * shards.most_bytes(), shards.most_bytes());
  } else {
    const auto sent = scratch.take<std::span<const std::byte>>(shards.count());
    for (std::size_t owner = 0; owner < sent.size(); ++owner) sent[owner] = own.bytes(owner);
    std::size_t longest = 0;
    Exchange rounds = scatter_varied(sent, shards.lengths(Pass::kFirst), payloads, longest, context);
    co_await rounds;
    shards.foresee(Pass::kFirst, longest);
  }
  const auto rank = static_cast<std::size_t>(context.rank());
  received = received_messages(shards, payloads, [=](std::size_t) { return rank; }, scratch);
}

Exchange send_to_all(const Shards& shards, const MessageToSend& message, std::span<std::span<const std::byte>> payloads, Context& context) {
  if (shards.codec().has_fixed_length()) {
    const auto all = context.scratch().take<std::byte>(message.bytes().size() * payloads.size());
    Await round = context.gather(message.bytes(), all);
    co_await round;
    for (std::size_t rank = 0; rank < payloads.size(); ++rank)
      payloads[rank] = all.subspan(rank * message.bytes().size(), message.bytes().size());
  } else {
    Exchange rounds = gather_varied(message.bytes(), shards.lengths(Pass::kSecond), payloads, context);
    co_await rounds;
    shards.foresee(Pass::kSecond, longest_of(payloads));
  }
}

}  // namespace thinwire
