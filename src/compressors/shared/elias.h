// Levels in Elias's omega code, as QSGD sends them.
//
// Sources: P. Elias, Universal codeword sets and representations of the integers, IEEE Trans. Inf. Theory 21 (1975); Alistarh et al., QSGD, NeurIPS
// 2017, section 3.2 and appendix A. There a bucket's string begins with its norm; here norms stand by themselves, and a chunk has one string.
//
// omega(n), n >= 1: groups, each of which tells how long the next one is, then a 0. A group is a number from 2 on: a 1, then its other bits, the
// lowest first; the last group is n, and the one before a group of e + 1 bits is e. So omega(1) is "0", omega(2) "100", omega(4) "101000".
//
//   sparse: for each level l other than 0 how far it lies behind the one before it, omega(distance), a bit that is 1 for a negative one, omega(|l|);
//           in the end the distance to what lies behind the last level.
//   dense:  for each level omega(|l| + 1), and where it is not 0 the bit of its sign.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

enum class EliasForm : std::uint8_t { kSparse, kDense };

// Levels l are given as numbers zero + l, |l| <= 127; at most 2^16 of them.
struct EliasNumbers {
  std::span<const std::uint8_t> numbers;
  std::uint8_t zero;
};

std::size_t elias_bits(const EliasNumbers& levels, EliasForm form);
// Writes 8 bytes beyond the string, which is filled up to whole bytes with zeros.
void write_elias(const EliasNumbers& levels, EliasForm form, std::byte* to);

// numbers <- those of levels in a string of so many bytes, behind which kEliasReadsBeyond may be read. Throws PayloadError unless it is a string of
// so many levels, of at most `zero` in magnitude, in bytes that write_elias() would write.
constexpr std::size_t kEliasReadsBeyond = 16;
void read_elias(const std::byte* bytes, std::size_t length, EliasForm form, std::uint8_t zero, std::span<std::uint8_t> numbers);

}  // namespace thinwire
