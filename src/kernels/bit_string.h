// Strings of bits in memory, least significant bit of each byte first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace thinwire::kernels {

// Appends bits to a string whose memory lets 8 bytes beyond its end be written.
class BitAppender {
 public:
  explicit BitAppender(std::byte* bytes) : begin_(bytes), next_(bytes) {}

  // The lowest `count` bits of word, at most 64, in which no others are set. Without branches, which chance would take.
  void append(std::uint64_t word, unsigned count) {
    held_ |= word << used_;
    std::memcpy(next_, &held_, sizeof held_);
    const unsigned used = used_ + count, full = used / 64;
    next_ += full * sizeof held_;
    held_ = full != 0 ? word >> 1 >> (63 - used_) : held_;
    used_ = used % 64;
  }
  // Zeros up to `bits` in all, less than 64 of them.
  void pad_to(std::size_t bits) { append(0, static_cast<unsigned>(bits - this->bits())); }
  std::size_t bits() const { return static_cast<std::size_t>(next_ - begin_) * 8 + used_; }
  // Writes what is held: bits after the last one of its byte are 0.
  void finish() { std::memcpy(next_, &held_, sizeof held_); }

 private:
  std::byte* begin_;
  std::byte* next_;
  std::uint64_t held_ = 0;
  unsigned used_ = 0;  // of held_, below 64
};

// 64 bits of a string from bit `position` on; reads at most 9 bytes.
inline std::uint64_t bits_at(const std::byte* bytes, std::size_t position) {
  std::uint64_t low;
  std::memcpy(&low, bytes + position / 8, sizeof low);
  const unsigned shift = position % 8;
  const auto high = static_cast<std::uint64_t>(bytes[position / 8 + sizeof low]);
  return low >> shift | high << 1 << (63 - shift);
}

}  // namespace thinwire::kernels
