// Ascending places as bytes: k different numbers below n take k (2 + log2(n/k)) bits at most, whatever they are.
//
// Source: Elias: "Efficient storage and retrieval by content and address of static files", J. ACM 21, 1974, and Fano: "On the number of
// bits required to implement an associative memory", MIT, 1971. With l = floor(log2(n/k)) the lower l bits of each place
// are written as they are. Its upper bits, h, are bit h + j of a string of bits, j its number: so as many bits are set as there are places.
//
// 1 % of 32,768 entries take 8.6 bits each, of 8.1 that no code could do without on average.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace thinwire {

class PlaceCode {
 public:
  // Of `count` places below `elements`, at most 65536. Pre: count <= elements.
  PlaceCode(std::size_t count, std::size_t elements);

  std::size_t bytes() const { return lower_bytes() + upper_bytes(); }
  // Pre: places ascend; code has bytes().
  void write(std::span<const std::uint16_t> places, std::span<std::byte> code) const;
  // Throws PayloadError for what write() would not have written: another number of places, places that do not ascend or that there are
  // not, bits beyond them. Nothing but zeros may stand for no places at all: then it returns false.
  bool check(std::span<const std::byte> code) const;
  // Calls body(j, place) for the j-th place, in order. Pre: check() passed.
  template <class Body>
  void read(std::span<const std::byte> code, const Body& body) const {
    const std::span<const std::byte> upper = code.subspan(lower_bytes());
    std::size_t j = 0;
    for (std::size_t first = 0; first < upper.size(); first += sizeof(std::uint64_t))
      for (std::uint64_t word = word_at(upper, first); word != 0; word &= word - 1, ++j) {
        const std::size_t bit = 8 * first + static_cast<std::size_t>(std::countr_zero(word));
        body(j, static_cast<std::size_t>((bit - j) << lower_bits_ | lower_at(code, j)));
      }
  }

 private:
  std::size_t lower_bytes() const { return (count_ * lower_bits_ + 7) / 8; }
  std::size_t upper_bytes() const { return (upper_bits() + 7) / 8; }
  std::size_t upper_bits() const { return count_ == 0 ? 0 : count_ + ((elements_ - 1) >> lower_bits_); }
  // Up to eight bytes, the first one lowest.
  static std::uint64_t word_at(std::span<const std::byte> bytes, std::size_t first);
  // The lower bits of the j-th place; 0 beyond the last one.
  std::size_t lower_at(std::span<const std::byte> code, std::size_t j) const {
    const std::size_t begin = j * lower_bits_;
    return word_at(code.first(lower_bytes()), begin / 8) >> begin % 8 & ((std::size_t{1} << lower_bits_) - 1);
  }

  std::size_t count_, elements_, lower_bits_;
};

inline std::uint64_t PlaceCode::word_at(std::span<const std::byte> bytes, std::size_t first) {
  std::uint64_t word = 0;
  if (first + sizeof word <= bytes.size()) {
    std::memcpy(&word, bytes.data() + first, sizeof word);
  } else {
    for (std::size_t i = bytes.size(); i-- > first;) word = word << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  return word;
}

}  // namespace thinwire
