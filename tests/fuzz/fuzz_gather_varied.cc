// gather_varied(): whatever sizes and bytes arrive, PayloadError or payloads of the sizes announced.
#include <vector>

#include "core/varied.h"
#include "core/scratch.h"
#include "core/thread_pool.h"
#include "fuzz/fuzz_input.h"
#include "thinwire/errors.h"

namespace thinwire::fuzz {
namespace {

// Every worker sends what this one does, spoilt by the input.
void deliver(const Collective& gather, std::size_t workers, Input& input) {
  for (std::size_t rank = 0; rank < workers; ++rank)
    std::ranges::copy(gather.data, gather.result.begin() + static_cast<std::ptrdiff_t>(rank * gather.data.size()));
  input.spoil(gather.result);
}

void gather(Input& input) {
  constexpr std::size_t kLargest = 100;
  const std::size_t workers = 1 + input.choose(5), rank = input.choose(workers), usual = input.choose(kLargest + 1);
  const std::vector<std::byte> mine(input.choose(kLargest + 1), std::byte{7});
  std::vector<std::span<const std::byte>> payloads(workers);
  Scratch scratch;
  ThreadPool threads(1);
  Context context({.rank = static_cast<int>(rank), .world_size = static_cast<int>(workers)}, scratch, threads);
  Exchange exchange = gather_varied(mine, {usual, kLargest}, payloads, context);

  int rounds = 0;
  for (const Collective* collective = exchange.next(); collective; collective = exchange.next(), ++rounds) {
    require(collective->data.size() <= kLargest + 8, "nobody sends more than is possible");
    deliver(*collective, workers, input);
  }
  require(rounds <= 2, "there are two rounds at most");
  for (const auto payload : payloads) {
    require(payload.size() <= kLargest, "a payload is as long as is possible");
    const std::vector<std::byte> read(payload.begin(), payload.end());
  }
}

}  // namespace
}  // namespace thinwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinwire::fuzz::Input input(data, size);
  try {
    thinwire::fuzz::gather(input);
  } catch (const thinwire::PayloadError&) {
  }
  return 0;
}
