#include "compressors/shared/riders.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/rows.h"

namespace thinwire {
namespace {

constexpr std::size_t kMostElements = 65536;  // beyond, an engine's own sum is faster than ours
constexpr double kFewBytes = 8192;            // where the link is unknown: worth a round of a tenth of a millisecond at 1 Gb/s

// A message to all carries what a sum would have sent in 2 (W-1)/W, and a scatter's two together as much as a sum.
bool pay(std::size_t elements, bool to_all, const Context& context) {
  if (elements == 0 || elements > kMostElements) return false;
  if (!to_all) return true;
  const double bytes = static_cast<double>(elements) * sizeof(float), workers = context.world_size();
  const double more = bytes * (workers - 1) * (1 - 2 / workers);
  return more <= (context.link.is_known() ? context.link.round_seconds * context.link.bytes_per_second : kFewBytes);
}

}  // namespace

Riders::Riders(Context& context, std::size_t parts) {
  if (!pay(context.riders.size(), parts == 1, context)) return;
  values_ = std::exchange(context.riders, {});
  part_elements_ = (values_.size() + parts - 1) / parts;
  room_ = context.scratch().take<float>(part_elements_);
}

std::span<float> Riders::part(std::size_t part) const {
  const std::size_t begin = std::min(part * part_elements_, values_.size());
  return values_.subspan(begin, std::min(part_elements_, values_.size() - begin));
}

void Riders::write(std::size_t which, std::span<std::byte> room) const {
  const auto bytes = std::as_bytes(part(which));
  std::ranges::fill(std::ranges::copy(bytes, room.begin()).out, room.end(), std::byte{0});
}

void Riders::take_sums(std::size_t which, const ReceivedMessage& message) const {
  const auto bytes = std::as_writable_bytes(part(which));
  std::ranges::copy(message.tail().first(bytes.size()), bytes.begin());
}

void Riders::sum(std::size_t which, std::span<const ReceivedMessage> messages) const {
  const auto sums = part(which), others = room_.first(sums.size());
  take_sums(which, messages.front());
  for (const ReceivedMessage& message : messages.subspan(1)) {
    std::ranges::copy(message.tail().first(others.size_bytes()), std::as_writable_bytes(others).begin());
    kernels::add_scaled(sums, others, 1.0f);
  }
}

}  // namespace thinwire
