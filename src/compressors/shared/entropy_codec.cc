#include "compressors/shared/entropy_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>

#include "compressors/shared/range_coder.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "kernels/bit_string.h"
#include "kernels/codes.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::size_t kStates = 4;
constexpr std::array<std::uint16_t, kMostStates> kNothingHidden{};
constexpr std::size_t kAlignment = 64;
// What is read or written beyond frequencies and words, of which each number takes 25 bits at most.
constexpr std::size_t kMostFrequencyBytes = 256 * 25 / 8 + 16;

enum class Kind : std::uint8_t { kPacked, kCoded };

[[noreturn]] void refuse(const std::string& why) { throw PayloadError("a chunk of numbers that are coded " + why); }

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

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

}  // namespace

// Bytes and escapes, words for each of them, numbers, and the copy of a code with what is read beyond it.
std::size_t EntropyCodec::room_bytes(const Piece& piece, std::size_t codes) const {
  const auto [begin, count, bits] = fixed_.numbers(piece);
  const Bytes bytes(bits, count);
  const std::size_t own = 6 * bytes.count + sizeof(std::uint16_t) + bytes.numbers() + most_bytes(piece) + kReadBeyond + kMostFrequencyBytes;
  return codes * (aligned(fixed_.most_bytes(piece)) + sizeof(std::span<std::byte>)) + aligned(fixed_.room_bytes(piece, codes)) + own;
}

std::size_t EntropyCodec::encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                                       std::span<std::byte> code, std::span<std::byte> room) const {
  if (magnitudes.largest == 0) return 0;
  const auto fixed = carve<std::byte>(room, aligned(fixed_.most_bytes(piece))).first(fixed_.most_bytes(piece));
  const auto inner_room = carve<std::byte>(room, aligned(fixed_.room_bytes(piece, 1)));
  fixed_.encode_piece(piece, pass, values, magnitudes, fixed, inner_room);

  const auto [begin, count, bits] = fixed_.numbers(piece);
  const Bytes bytes(bits, count);
  const auto words = carve<std::uint16_t>(room, 2 * bytes.count + 1);  // one is written before the front
  const auto joined = carve<std::uint8_t>(room, bytes.count), escaped = carve<std::uint8_t>(room, bytes.count);
  const auto numbers = carve<std::uint8_t>(room, bytes.numbers());
  kernels::unpack(fixed.subspan(begin), bits, numbers.first(count));
  const Frequencies frequencies = frequencies_of(numbers.first(count));
  const auto usual = static_cast<std::uint8_t>(std::ranges::max_element(frequencies) - frequencies.begin());
  std::ranges::fill(numbers.subspan(count), usual);
  bytes.join(numbers.data(), joined);
  const CodingTable table = table_of_bytes(frequencies, bytes);
  const std::size_t escapes = take_out_escapes(table, joined, escaped.data());
  std::uint16_t* const words_end = words.data() + words.size();
  RangeEncoder<kStates> encoder(words_end, kNothingHidden);
  encoder.put_run(even_bytes(), escaped.first(escapes));
  encoder.put_run(table, joined);
  const auto coded = std::as_bytes(std::span(encoder.front(), words_end));
  std::array<std::byte, kMostFrequencyBytes> head;
  const auto sent = std::span(head).first(write_frequencies(std::span(frequencies).first(std::size_t{1} << bits), head.data()));

  const bool shorter = sent.size() + sizeof encoder.states() + coded.size() < fixed.size() - begin;
  ByteWriter writer(code);
  writer.write_all(std::span<const std::byte>(fixed.first(begin)));
  writer.write(shorter ? Kind::kCoded : Kind::kPacked);
  if (shorter) {
    writer.write_all(std::span<const std::byte>(sent));
    writer.write(encoder.states());
    writer.write_all(coded);
  } else {
    writer.write_all(std::span<const std::byte>(fixed.subspan(begin)));
  }
  return code.size() - writer.left();
}

std::span<const std::byte> EntropyCodec::restore(std::span<const std::byte> code, const Piece& piece, std::span<std::byte> fixed,
                                                 std::span<std::byte> room) const {
  const auto [begin, count, bits] = fixed_.numbers(piece);
  ByteReader reader(code, "a chunk of numbers that are coded");
  std::ranges::copy(reader.take(begin), fixed.begin());
  const auto kind = reader.read<Kind>();
  const std::size_t left = reader.left();
  const auto rest = reader.take(left);
  const auto packed = fixed.subspan(begin);
  if (kind == Kind::kPacked) {
    if (left != packed.size()) refuse("has " + std::to_string(left) + " bytes as they are instead of " + std::to_string(packed.size()));
    std::ranges::copy(rest, packed.begin());
  } else if (kind == Kind::kCoded) {
    const Bytes bytes(bits, count);
    const auto joined = carve<std::uint8_t>(room, bytes.count), numbers = carve<std::uint8_t>(room, bytes.numbers());
    const auto copied = carve<std::byte>(room, left + kReadBeyond + kMostFrequencyBytes);
    std::ranges::copy(rest, copied.begin());
    std::ranges::fill(copied.subspan(left), std::byte{0});
    Frequencies frequencies{};
    const std::size_t head = read_frequencies(copied.data(), std::span(frequencies).first(std::size_t{1} << bits));
    std::array<std::uint32_t, kStates> states;
    if (head + sizeof states > left) refuse("ends within its head");
    std::memcpy(states.data(), copied.data() + head, sizeof states);
    for (const std::uint32_t state : states)
      if (state < kLeastState || state >> 31 != 0) refuse("has a state that none ends in");
    const std::byte* const end = copied.data() + left;
    RangeDecoder<kStates> decoder(states, copied.data() + head + sizeof states);
    if (!take_run(decoder, table_of_bytes(frequencies, bytes), joined, end) || decoder.next() != end) refuse("does not end with its words");
    bytes.split(joined, numbers.data());
    kernels::pack(numbers.first(count), bits, packed);
  } else {
    refuse("is of kind " + std::to_string(static_cast<int>(kind)) + ", which there is not");
  }
  fixed_.check(fixed, piece);
  return fixed;
}

void EntropyCodec::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                          std::span<std::byte> room) const {
  if (code.empty()) {
    if (!add) std::ranges::fill(values, 0.0f);
    return;
  }
  const auto fixed = carve<std::byte>(room, aligned(fixed_.most_bytes(piece))).first(fixed_.most_bytes(piece));
  const auto inner_room = carve<std::byte>(room, aligned(fixed_.room_bytes(piece, 1)));
  fixed_.decode(restore(code, piece, fixed, room), piece, weight, add, values, inner_room);
}

void EntropyCodec::decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                              std::span<std::byte> room) const {
  const std::size_t bytes = fixed_.most_bytes(piece);
  const auto all = carve<std::byte>(room, codes.size() * aligned(bytes));
  const auto inner_room = carve<std::byte>(room, aligned(fixed_.room_bytes(piece, codes.size())));
  const auto restored = carve<std::span<const std::byte>>(room, codes.size());
  std::size_t count = 0;
  for (const auto code : codes) {
    if (code.empty()) continue;
    restored[count] = restore(code, piece, all.subspan(count * aligned(bytes), bytes), room);
    ++count;
  }
  if (count == 0)
    std::ranges::fill(values, 0.0f);
  else
    fixed_.decode_sum(restored.first(count), piece, weight, values, inner_room);
}

SpecParameter coding() {
  return choice("coding", {"fixed", "entropy"},
                "fixed: as many bits for each number of a level; entropy: as many as its frequency in the chunk is worth, in messages of any length");
}

}  // namespace thinwire
