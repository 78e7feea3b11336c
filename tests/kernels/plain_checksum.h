// kernels::checksum() again, byte by byte as docs/wire_format.md has it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::testing {

inline std::uint32_t plain_mix(std::uint32_t sum, std::uint32_t word) {
  const std::uint64_t product = static_cast<std::uint64_t>(sum ^ word) * 2654435761u;
  const auto x = static_cast<std::uint32_t>(product & 0xFFFFFFFFu);
  return x ^ (x / 32768);
}

inline std::uint32_t plain_checksum(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kStart = 2135587861u;
  std::array<std::uint32_t, 16> lanes;
  lanes.fill(kStart);
  for (std::size_t group = 0; group < bytes.size(); group += 64)
    for (std::size_t lane = 0; lane < 16; ++lane) {
      std::uint32_t word = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t at = group + 4 * lane + i;
        if (at < bytes.size()) word += std::to_integer<std::uint32_t>(bytes[at]) << (8 * i);
      }
      lanes[lane] = plain_mix(lanes[lane], word);
    }
  std::uint32_t sum = plain_mix(kStart, static_cast<std::uint32_t>(bytes.size()));
  for (const std::uint32_t lane : lanes) sum = plain_mix(sum, lane);
  return sum;
}

}  // namespace thinwire::testing
