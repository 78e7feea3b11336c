// Gathered messages that were spoilt after they had been sealed, sealed again: what is then read is what decoders make of bytes
// that no encoder wrote. By the words of docs/wire_format.md alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/plain_checksum.h"

namespace thinwire::testing {

inline constexpr std::size_t kChecksumAt = 8, kSealedHeader = 12;

inline std::uint32_t word_at(std::span<const std::byte> message, std::size_t position) {
  std::uint32_t word;
  std::memcpy(&word, message.data() + position, sizeof word);
  return word;
}

inline std::uint32_t right_checksum(std::span<const std::byte> message) {
  return plain_mix(plain_mix(plain_checksum(message.subspan(kSealedHeader)), word_at(message, 0)), word_at(message, 4));
}

inline bool is_sealed(std::span<const std::byte> message) {
  return message.size() >= kSealedHeader && word_at(message, kChecksumAt) == right_checksum(message);
}

inline void reseal(std::span<std::byte> message) {
  const std::uint32_t checksum = right_checksum(message);
  std::memcpy(message.data() + kChecksumAt, &checksum, sizeof checksum);
}

// The sealed message in a block that was received: the block itself, or what its announcement says is behind it; empty for none.
inline std::span<const std::byte> sealed_in(std::span<const std::byte> block) {
  constexpr std::size_t kAnnouncement = 8;
  if (is_sealed(block)) return block;
  if (block.size() < kAnnouncement) return {};
  const std::size_t length = word_at(block, 0);
  if (length > block.size() - kAnnouncement) return {};
  const auto message = block.subspan(kAnnouncement, length);
  return is_sealed(message) ? message : std::span<const std::byte>();
}

// Calls spoil(bytes) for `bytes`, which are `count` blocks of equal length, and seals again the messages in them that were sealed before;
// but not where it was the checksum that was spoilt, nor what is part of a message only.
template <class Spoil>
void spoil_and_reseal(std::span<std::byte> bytes, std::size_t count, const Spoil& spoil) {
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());
  spoil(bytes);
  const std::size_t size = bytes.size() / count;
  for (std::size_t begin = 0; begin + size <= bytes.size() && size >= kSealedHeader; begin += size) {
    const auto before = sealed_in(std::span(copy).subspan(begin, size));
    if (before.empty()) continue;
    const auto message = bytes.subspan(static_cast<std::size_t>(before.data() - copy.data()), before.size());
    if (word_at(message, kChecksumAt) == word_at(before, kChecksumAt)) reseal(message);
  }
}

}  // namespace thinwire::testing
