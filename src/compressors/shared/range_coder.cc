#include "compressors/shared/range_coder.h"

#include <bit>

#include "kernels/bit_string.h"

namespace thinwire {

std::size_t write_states(std::span<const std::uint32_t> states, std::byte* to) {
  kernels::BitAppender appender(to);
  for (const std::uint32_t state : states) {
    const auto bits = static_cast<unsigned>(std::bit_width(state)) - 1;
    const std::uint64_t below = state - (1U << bits);
    appender.append((bits - 15) | below << 4, bits + 4);
  }
  appender.finish();
  return (appender.bits() + 7) / 8;
}

std::size_t read_states(const std::byte* from, std::span<std::uint32_t> states) {
  std::size_t position = 0;
  for (std::uint32_t& state : states) {
    const std::uint64_t string = kernels::bits_at(from, position);
    const unsigned bits = (string & 15) + 15;
    state = 1U << bits | (static_cast<std::uint32_t>(string >> 4) & ((1U << bits) - 1));
    position += bits + 4;
  }
  return (position + 7) / 8;
}

}  // namespace thinwire
