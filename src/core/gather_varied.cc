#include "core/gather_varied.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

std::uint64_t longest_of(std::span<const std::uint64_t> sizes, std::size_t largest) {
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    if (sizes[rank] > largest)
      throw PayloadError("worker " + std::to_string(rank) + " announces a payload of " + std::to_string(sizes[rank]) +
                         " bytes; at most " + std::to_string(largest) + " are possible");
  return sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
}

}  // namespace

void expect_own(std::span<const std::byte> sent, std::span<const std::byte> returned, const char* what) {
  if (!std::ranges::equal(sent, returned))
    throw PayloadError(std::string("the ") + what + " that this worker announced came back changed");
}

Exchange gather_varied(std::span<const std::byte> mine, std::size_t largest, std::span<std::span<const std::byte>> payloads,
                       Context& context) {
  auto sizes = context.scratch().take<std::uint64_t>(payloads.size());
  auto my_size = context.scratch().take<std::uint64_t>(1);
  my_size[0] = mine.size();
  Await size_round = context.gather(std::as_writable_bytes(my_size), std::as_writable_bytes(sizes));
  co_await size_round;

  const std::size_t longest = longest_of(sizes, largest);
  expect_own(std::as_bytes(my_size), std::as_bytes(sizes.subspan(static_cast<std::size_t>(context.rank()), 1)), "size");
  auto padded = context.scratch().take<std::byte>(longest);
  auto all = context.scratch().take<std::byte>(longest * payloads.size());
  if (!mine.empty()) std::memcpy(padded.data(), mine.data(), mine.size());
  std::fill(padded.begin() + static_cast<std::ptrdiff_t>(mine.size()), padded.end(), std::byte{0});
  Await payload_round = context.gather(padded, all);
  co_await payload_round;

  for (std::size_t rank = 0; rank < payloads.size(); ++rank)
    payloads[rank] = std::span<const std::byte>(all).subspan(rank * longest, sizes[rank]);
}

}  // namespace thinwire
