#include "compressors/sparsifiers/places.h"

#include <algorithm>
#include <string>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

// Bits are there already as zeros.
void set_bits(std::span<std::byte> bytes, std::size_t position, std::size_t bits) {
  bits <<= position % 8;
  for (std::size_t i = position / 8; bits != 0; ++i, bits >>= 8) bytes[i] |= static_cast<std::byte>(bits & 0xFF);
}

}  // namespace

PlaceCode::PlaceCode(std::size_t count, std::size_t elements)
    : count_(count), elements_(elements), lower_bits_(count == 0 ? 0 : static_cast<std::size_t>(std::bit_width(elements / count)) - 1) {}

void PlaceCode::write(std::span<const std::uint16_t> places, std::span<std::byte> code) const {
  std::ranges::fill(code, std::byte{0});
  const std::size_t mask = (std::size_t{1} << lower_bits_) - 1;
  for (std::size_t j = 0; j < places.size(); ++j) {
    set_bits(code, j * lower_bits_, places[j] & mask);
    set_bits(code.subspan(lower_bytes()), (places[j] >> lower_bits_) + j, 1);
  }
}

bool PlaceCode::check(std::span<const std::byte> code) const {
  if (std::ranges::all_of(code, [](std::byte byte) { return byte == std::byte{0}; })) return false;
  std::size_t found = 0, next = 0;
  read(code, [&](std::size_t j, std::size_t place) {
    if (place >= elements_ || place < next)
      throw PayloadError("places of a chunk do not ascend below " + std::to_string(elements_) + ": number " + std::to_string(j) + " is " +
                         std::to_string(place));
    found = j + 1;
    next = place + 1;
  });
  if (found != count_)
    throw PayloadError("a chunk has " + std::to_string(found) + " places; " + std::to_string(count_) + " were agreed on");
  const std::size_t unused = 8 * lower_bytes() - count_ * lower_bits_;
  if (unused > 0 && std::to_integer<unsigned>(code[lower_bytes() - 1]) >> (8 - unused) != 0)
    throw PayloadError("the places of a chunk have bits beyond the last one");
  return true;
}

}  // namespace thinwire
