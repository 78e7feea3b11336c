// Codes of 1 to 8 bits an element, packed without waste as bit planes, and looked up in tables.
//
// Packed layout of n codes of b bits: elements go in groups of 16. A full group is b little-endian 16-bit words; bit e
// of word k is bit k of element e's code. A last group of t < 16 elements is a string of t*b bits, least significant
// first: bit k*t + e is bit k of element e's code; the rest of its last byte is zero. In all ceil(n*b/8) bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::kernels {

inline constexpr int kMaxCodeBits = 8;

constexpr std::size_t packed_bytes(std::size_t elements, int bits) { return (elements * bits + 7) / 8; }

// Pre: every code < 2^bits, packed.size() == packed_bytes(codes.size(), bits), likewise below.
void pack(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed);
void unpack(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes);

// What assign() learns of its clusters: sums of values (float accuracy over 16 lanes) and counts, by code.
struct ClusterSums {
  float sum[1 << kMaxCodeBits] = {};
  std::uint32_t count[1 << kMaxCodeBits] = {};
};

// The code of a value is the number of thresholds below it (value > threshold), so codes ascend with values. Writes
// the packed codes, returns sums and counts. thresholds: ascending, 2^bits - 1 of them; bits 1 to kMaxCodeBits. Up to 4
// bits each threshold is compared; from 5 on a value searches its code in as many steps as there are bits.
// Pre: values finite.
ClusterSums assign(std::span<const float> values, std::span<const float> thresholds, int bits,
                   std::span<std::byte> packed);

// 0 and so many floats of a few bits on either side of it: multiples of 2^(least_exponent - mantissa_bits) up to 2^least_exponent, and behind that
// 2^mantissa_bits of them from each power of two to the next. Whole numbers are floats whose mantissa has room for all of them.
struct FewBitFloats {
  int mantissa_bits = 1;   // 1 to 22; to round at random also 0, which leaves powers of two
  int least_exponent = 0;  // of floats that are not denormal; from -100, to round at random from -126, to 100
  int count = 0;           // of either sign, so that there are 2 count + 1 in all
  bool operator==(const FewBitFloats&) const = default;
};
inline constexpr FewBitFloats whole_numbers(int largest) { return {22, 22, largest}; }

// The code of a value is the number of the nearest of these floats, counted from the lowest; in the middle of two, of the one whose number, counted
// from 0, is even, as IEEE rounds; of the outermost one for what lies beyond. Pre: values are not NaN; 2 count + 1 <= 2^bits.
void assign(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<std::byte> packed);

// The code of a value is the number of one of the two levels that it lies between, such that the expectation of that level is the value,
// to 2^-24 of their distance; of the outermost level for what lies beyond. levels: ascending, 2 to 2^bits of them. words[i] decides, by its
// upper 24 bits. Pre: values finite.
void assign_randomly(std::span<const float> values, std::span<const float> levels, int bits, std::span<const std::uint32_t> words,
                     std::span<std::byte> packed);

// The same of these floats, by arithmetic instead of a search; to 2^-(23 - mantissa_bits) of their distance, by as many of a word's upper bits.
// Pre: what is between two of them is not denormal itself, but for what is below the least one.
void assign_randomly(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<const std::uint32_t> words,
                     std::span<std::byte> packed);

// The same of levels that are a step apart, which codes from 0 to `largest` stand for, and whose middle, which may lie between two of them, is 0; to 2^-(30 - bits)
// of a step, by as many of a word's upper bits.
struct EvenLevels {
  int largest = 0;
  float inverse_step = 0;
};
void assign_randomly(std::span<const float> values, const EvenLevels& levels, int bits, std::span<const std::uint32_t> words,
                     std::span<std::byte> packed);

// table: 2^bits entries. out[i] = table[code i]; out[i] += table[code i].
void look_up(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out);
void look_up_add(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out);

// The same for evenly spaced tables, of codes up to `largest`, which is even: its middle means 0, and neighbours are a step
// apart. Codes above count as `largest`.
struct Levels {
  int largest = 0;
  float step = 0;
};
void look_up(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out);
void look_up_add(std::span<const std::byte> packed, int bits, const Levels& levels, std::span<float> out);

// The codes of several workers, and what they mean: out[i] = (what the first one's code i means + the second one's) + (the third one's + the fourth one's) + ...,
// added in this order, the last one alone if their number is odd; zeros without any. By pairs, as both codes together may be looked up at once.
struct Coded {
  std::span<const std::byte> packed;
  std::span<const float> table;
};
struct CodedLevels {
  std::span<const std::byte> packed;
  Levels levels;
};
void look_up_sum(std::span<const Coded> codes, int bits, std::span<float> out);
void look_up_sum(std::span<const CodedLevels> codes, int bits, std::span<float> out);

}  // namespace thinwire::kernels
