#include "compressors/shared/shards.h"

namespace thinwire {

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

}  // namespace thinwire
