#include "compressors/shared/frequency_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "compressors/shared/range_coder.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "kernels/bit_string.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::size_t kStates = 4;  // there is nothing for states to hide, so that each costs some three bytes
constexpr std::array<std::uint16_t, kMostStates> kNothingHidden{};
// What is read or written beyond frequencies and words, of which each number takes 25 bits at most.
constexpr std::size_t kMostFrequencyBytes = 256 * 25 / 8 + 16;
static_assert(kFrequencyCodeReadsBeyond >= kReadBeyond + most_state_bytes(kStates) + kMostFrequencyBytes);

[[noreturn]] void refuse(const std::string& why) { throw PayloadError("a chunk of numbers that are coded " + why); }

// How numbers lie in the bytes that are coded.
struct Bytes {
  unsigned bits;
  std::size_t together, count;

  Bytes(int of_bits, std::size_t numbers)
      : bits(static_cast<unsigned>(of_bits)), together(bits <= 2 ? 4 : bits <= 4 ? 2 : 1), count((numbers + together - 1) / together) {}
  std::size_t numbers() const { return together * count; }

  void join(const std::uint8_t* numbers, std::span<std::uint8_t> bytes) const {
    std::copy_n(numbers, count, bytes.begin());
    for (std::size_t j = 1; j < together; ++j)
      for (std::size_t i = 0; i < count; ++i)
        bytes[i] = static_cast<std::uint8_t>(bytes[i] | numbers[j * count + i] << (j * bits));
  }
  void split(std::span<const std::uint8_t> bytes, std::uint8_t* numbers) const {
    const auto mask = static_cast<std::uint8_t>((1U << bits) - 1);
    for (std::size_t j = 0; j < together; ++j)
      for (std::size_t i = 0; i < count; ++i) numbers[j * count + i] = static_cast<std::uint8_t>(bytes[i] >> (j * bits) & mask);
  }
};

// Of numbers, those that occur at least 1, of kFrequencySum in all.
Frequencies frequencies_of(std::span<const std::uint8_t> numbers) {
  std::array<std::array<std::uint32_t, 256>, 4> counts{};  // neighbours are often the same, and would wait for each other
  for (std::size_t i = 0; i < numbers.size(); ++i) ++counts[i % 4][numbers[i]];
  Frequencies frequencies{};
  std::uint32_t sum = 0;
  const std::uint64_t all = numbers.size();
  for (std::size_t v = 0; v < frequencies.size(); ++v) {
    const std::uint64_t count = counts[0][v] + counts[1][v] + counts[2][v] + counts[3][v];
    if (count == 0) continue;
    frequencies[v] = std::max(1U, static_cast<std::uint32_t>((count * kFrequencySum + all / 2) / all));
    sum += frequencies[v];
  }
  if (sum < kFrequencySum) *std::ranges::max_element(frequencies) += kFrequencySum - sum;
  for (; sum > kFrequencySum; --sum) --*std::ranges::max_element(frequencies);
  return frequencies;
}

// Of the bytes that numbers of these frequencies are joined to: shares of the whole by sums from the first byte on, so that they always
// are kFrequencySum together. Bytes that are too rare for one are escapes.
CodingTable table_of_bytes(const Frequencies& frequencies, const Bytes& bytes) {
  Frequencies of_bytes{};
  const std::size_t values = std::size_t{1} << (bytes.bits * bytes.together);
  const unsigned shift = kFrequencyBits * static_cast<unsigned>(bytes.together - 1);
  const std::uint64_t half = shift == 0 ? 0 : std::uint64_t{1} << (shift - 1);
  std::uint64_t sum = 0;
  std::uint32_t begin = 0;
  std::uint64_t lacking = 0;
  for (std::size_t value = 0; value < values; ++value) {
    std::uint64_t weight = 1;
    for (std::size_t j = 0; j < bytes.together; ++j) weight *= frequencies[value >> (j * bytes.bits) & ((1U << bytes.bits) - 1)];
    sum += weight;
    const auto end = static_cast<std::uint32_t>((sum + half) >> shift);
    of_bytes[value] = end - begin;
    if (end == begin) lacking += weight;
    begin = end;
  }
  if (lacking == 0) return table_of(of_bytes, false);
  auto& largest = *std::ranges::max_element(of_bytes);
  const std::uint32_t moved = std::clamp(static_cast<std::uint32_t>(lacking >> shift), 1U, largest - 1);
  largest -= moved;
  of_bytes[kEscape] += moved;
  return table_of(of_bytes, true);
}

std::size_t write_frequencies(std::span<const std::uint32_t> frequencies, std::byte* to) {
  kernels::BitAppender appender(to);
  for (const std::uint32_t frequency : frequencies) {
    const auto exponent = static_cast<unsigned>(std::bit_width(frequency + 1) - 1);
    const std::uint64_t lower = frequency + 1 - (1U << exponent);
    appender.append((lower << 1 | 1) << exponent, 2 * exponent + 1);
  }
  appender.finish();
  return (appender.bits() + 7) / 8;
}

// Behind `bytes` there may be read kMostFrequencyBytes. Returns how many were taken.
std::size_t read_frequencies(const std::byte* bytes, std::span<std::uint32_t> frequencies) {
  std::size_t position = 0;
  std::uint32_t sum = 0;
  for (std::uint32_t& frequency : frequencies) {
    const std::uint64_t bits = kernels::bits_at(bytes, position);
    const auto exponent = static_cast<unsigned>(std::countr_zero(bits));
    if (exponent > kFrequencyBits) refuse("has a number that is more than all");
    frequency = (1U << exponent) + static_cast<std::uint32_t>(bits >> (exponent + 1) & ((1U << exponent) - 1)) - 1;
    position += 2 * exponent + 1;
    sum += frequency;
  }
  if (sum != kFrequencySum) refuse("has frequencies of " + std::to_string(sum) + " in all instead of " + std::to_string(kFrequencySum));
  return (position + 7) / 8;
}

// Words of `joined`, of which `escaped` were taken out, at the end of `words`, and the states before them. Returns both; nothing if they are longer than `to`.
std::size_t write_words(const CodingTable& table, std::span<const std::uint8_t> joined, std::span<const std::uint8_t> escaped, std::span<std::uint16_t> words,
                        std::span<std::byte> to) {
  std::uint16_t* const end = words.data() + words.size();
  RangeEncoder<kStates> encoder(end, kNothingHidden);
  encoder.put_run(even_bytes(), escaped);
  encoder.put_run(table, joined);
  const auto coded = std::as_bytes(std::span(encoder.front(), end));
  std::array<std::byte, most_state_bytes(kStates) + 8> states;
  const auto sent = std::span<const std::byte>(states).first(write_states(encoder.states(), states.data()));
  if (sent.size() + coded.size() >= to.size()) return 0;
  ByteWriter writer(to);
  writer.write_all(sent);
  writer.write_all(coded);
  return to.size() - writer.left();
}

// False unless the words end at `end`.
bool read_words(const CodingTable& table, const std::byte* from, const std::byte* end, std::span<std::uint8_t> joined) {
  std::array<std::uint32_t, kStates> states;
  const std::byte* const words = from + read_states(from, states);
  RangeDecoder<kStates> decoder(states, words);
  return take_run(decoder, table, joined, end) && decoder.next() == end;
}

}  // namespace

// Bytes and escapes, words for each of them, numbers with what fills the last bytes.
std::size_t frequency_code_room_bytes(std::size_t count, int bits) {
  const Bytes bytes(bits, count);
  return 6 * bytes.count + kMostStates * sizeof(std::uint16_t) + bytes.numbers();
}

std::size_t write_frequency_code(std::span<const std::uint8_t> given, int bits, std::span<std::byte> to, std::span<std::byte> room) {
  const Bytes bytes(bits, given.size());
  const auto words = carve<std::uint16_t>(room, 2 * bytes.count + kMostStates);
  const auto joined = carve<std::uint8_t>(room, bytes.count), escaped = carve<std::uint8_t>(room, bytes.count);
  const auto numbers = carve<std::uint8_t>(room, bytes.numbers());
  std::ranges::copy(given, numbers.begin());
  const Frequencies frequencies = frequencies_of(given);
  const auto usual = static_cast<std::uint8_t>(std::ranges::max_element(frequencies) - frequencies.begin());
  std::ranges::fill(numbers.subspan(given.size()), usual);
  bytes.join(numbers.data(), joined);
  const CodingTable table = table_of_bytes(frequencies, bytes);
  const std::size_t escapes = take_out_escapes(table, joined, escaped.data());
  std::array<std::byte, kMostFrequencyBytes> head;
  const auto sent = std::span(head).first(write_frequencies(std::span(frequencies).first(std::size_t{1} << bits), head.data()));
  if (sent.size() >= to.size()) return 0;
  std::ranges::copy(sent, to.begin());
  const std::size_t written = write_words(table, joined, escaped.first(escapes), words, to.subspan(sent.size()));
  return written == 0 ? 0 : sent.size() + written;
}

void read_frequency_code(const std::byte* code, std::size_t length, int bits, std::span<std::uint8_t> numbers, std::span<std::byte> room) {
  const Bytes bytes(bits, numbers.size());
  const auto joined = carve<std::uint8_t>(room, bytes.count), with_filling = carve<std::uint8_t>(room, bytes.numbers());
  Frequencies frequencies{};
  const std::size_t head = read_frequencies(code, std::span(frequencies).first(std::size_t{1} << bits));
  if (head > length) refuse("ends within its head");
  if (!read_words(table_of_bytes(frequencies, bytes), code + head, code + length, joined)) refuse("does not end with its words");
  bytes.split(joined, with_filling.data());
  std::ranges::copy(with_filling.first(numbers.size()), numbers.begin());
}

}  // namespace thinwire
