#include "compressors/shared/elias.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <string>

#include "kernels/bit_string.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr unsigned kMostExponent = 16;  // of a distance

[[noreturn]] void refuse(const char* why) { throw PayloadError(std::string("a chunk of levels in Elias's code ") + why); }

struct Codeword {
  std::uint64_t bits;
  unsigned count;
};

constexpr Codeword omega(std::uint32_t n) {
  Codeword word{0, 1};
  while (n > 1) {
    const auto exponent = static_cast<unsigned>(std::bit_width(n)) - 1;
    const std::uint64_t group = (n - (1U << exponent)) << 1 | 1;
    word = {word.bits << (exponent + 1) | group, word.count + exponent + 1};
    n = exponent;
  }
  return word;
}

// Most numbers are small.
constexpr auto kSmall = [] {
  std::array<Codeword, 256> words{};
  for (std::uint32_t n = 1; n < words.size(); ++n) words[n] = omega(n);
  return words;
}();

Codeword codeword(std::size_t n) { return n < kSmall.size() ? kSmall[n] : omega(static_cast<std::uint32_t>(n)); }

// Calls append(bits, count) for the string's parts.
template <class Append>
void for_each_part(const EliasNumbers& levels, EliasForm form, const Append& append) {
  const auto put = [&append](const Codeword& word) { append(word.bits, word.count); };
  const auto [numbers, zero] = levels;
  if (form == EliasForm::kDense) {
    for (const std::uint8_t number : numbers) {
      put(kSmall[static_cast<std::size_t>(std::abs(number - zero)) + 1]);
      if (number != zero) append(number < zero ? 1 : 0, 1);
    }
    return;
  }
  std::size_t behind = 0;  // the last level that is not 0
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == zero) continue;
    put(codeword(i + 1 - behind));
    append(numbers[i] < zero ? 1 : 0, 1);
    put(kSmall[static_cast<std::size_t>(std::abs(numbers[i] - zero))]);
    behind = i + 1;
  }
  put(codeword(numbers.size() + 1 - behind));
}

class Reader {
 public:
  Reader(const std::byte* bytes, std::size_t length) : bytes_(bytes), end_(8 * length) {}

  std::uint32_t omega() {
    need(1);
    std::uint64_t bits = kernels::bits_at(bytes_, position_);
    std::uint32_t n = 1;
    unsigned taken = 1;
    while ((bits & 1) != 0) {
      if (n > kMostExponent) refuse("has a number that is too large");
      const unsigned exponent = n;
      n = 1U << exponent | (static_cast<std::uint32_t>(bits >> 1) & ((1U << exponent) - 1));
      bits >>= exponent + 1;
      taken += exponent + 1;
    }
    position_ += taken;
    need(0);
    return n;
  }
  bool bit() {
    need(1);
    return (kernels::bits_at(bytes_, position_++) & 1) != 0;
  }
  // Fewer than 8 zeros are left.
  void end() const {
    if (end_ - position_ >= 8) refuse("goes on behind the last one");
    if (position_ < end_ && (kernels::bits_at(bytes_, position_) & ((1U << (end_ - position_)) - 1)) != 0) refuse("is not filled up with zeros");
  }

 private:
  void need(std::size_t bits) const {
    if (position_ + bits > end_) refuse("ends too early");
  }

  const std::byte* bytes_;
  std::size_t end_, position_ = 0;
};

std::uint8_t signed_number(std::uint32_t magnitude, bool negative, std::uint8_t zero) {
  if (magnitude > zero) refuse("has a level that there is not");
  return static_cast<std::uint8_t>(negative ? zero - magnitude : zero + magnitude);
}

}  // namespace

std::size_t elias_bits(const EliasNumbers& levels, EliasForm form) {
  std::size_t bits = 0;
  for_each_part(levels, form, [&](std::uint64_t /*bits*/, unsigned count) { bits += count; });
  return bits;
}

void write_elias(const EliasNumbers& levels, EliasForm form, std::byte* to) {
  kernels::BitAppender appender(to);
  for_each_part(levels, form, [&](std::uint64_t bits, unsigned count) { appender.append(bits, count); });
  appender.finish();
}

void read_elias(const std::byte* bytes, std::size_t length, EliasForm form, std::uint8_t zero, std::span<std::uint8_t> numbers) {
  Reader reader(bytes, length);
  if (form == EliasForm::kDense) {
    for (std::uint8_t& number : numbers) {
      const std::uint32_t magnitude = reader.omega() - 1;
      number = signed_number(magnitude, magnitude != 0 && reader.bit(), zero);
    }
  } else {
    std::ranges::fill(numbers, zero);
    for (std::size_t behind = 0;;) {
      const std::size_t next = behind + reader.omega();
      if (next > numbers.size() + 1) refuse("has a level behind the last one");
      if (next == numbers.size() + 1) break;
      const bool negative = reader.bit();
      numbers[next - 1] = signed_number(reader.omega(), negative, zero);
      behind = next;
    }
  }
  reader.end();
}

}  // namespace thinwire
