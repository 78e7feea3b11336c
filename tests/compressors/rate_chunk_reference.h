// The code of a chunk of casq:rate= read as docs/wire_format.md says, slowly, one bit after another; and the bits of an ideal coder.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <vector>

namespace thinwire::casq::reference {

using Frequencies = std::vector<std::uint32_t>;  // of 4096

// The most frequent value takes what is missing from 4096, or beyond.
inline Frequencies completed(Frequencies frequencies) {
  std::size_t largest = 0;
  std::uint32_t sum = 0;
  for (std::size_t v = 0; v < frequencies.size(); ++v) {
    sum += frequencies[v];
    if (frequencies[v] > frequencies[largest]) largest = v;
  }
  frequencies[largest] += 4096 - sum;
  return frequencies;
}

inline Frequencies of_bits(std::uint64_t p, bool& escapes) {
  std::array<std::uint64_t, 9> one, zero;
  one[0] = zero[0] = std::uint64_t{1} << 32;
  for (int k = 1; k <= 8; ++k) {
    one[k] = one[k - 1] * p / 65536;
    zero[k] = zero[k - 1] * (65536 - p) / 65536;
  }
  Frequencies frequencies(256);
  std::uint64_t missing = 0;
  const auto rounded = [](std::uint64_t weight) { return static_cast<std::uint32_t>((weight * 4096 + (std::uint64_t{1} << 31)) >> 32); };
  for (unsigned v = 0; v < 256; ++v) {
    const int k = std::popcount(v);
    const std::uint64_t weight = (one[k] / 2) * (zero[8 - k] / 2) >> 30;
    frequencies[v] = rounded(weight);
    if (frequencies[v] == 0) missing += weight;
  }
  escapes = frequencies[255] == 0;
  if (escapes) frequencies[255] = std::max(1U, rounded(missing));
  return completed(frequencies);
}

inline Frequencies of_distances(std::uint32_t zero, std::uint64_t decay, int largest) {
  std::vector<std::uint64_t> weights = {std::uint64_t{1} << 32};
  std::uint64_t sum = weights[0];
  for (int d = 1; d <= largest; ++d) {
    weights.push_back(weights.back() * decay / 64);
    sum += 2 * weights.back();
  }
  Frequencies frequencies;
  if (zero > 0) frequencies.push_back(zero);
  for (int d = 0; d <= largest; ++d)
    for (int side = 0; side < (d == 0 ? 1 : 2); ++side)
      frequencies.push_back(std::max(1U, static_cast<std::uint32_t>(weights[static_cast<std::size_t>(d)] * (4096 - zero) / sum)));
  return completed(frequencies);
}

// Takes turns between states.
struct Coder {
  std::vector<std::uint32_t> states;
  std::span<const std::byte> code;
  std::size_t at;

  std::uint16_t word() {
    if (at + 2 > code.size()) throw std::runtime_error("no word is left");
    std::uint16_t w;
    std::memcpy(&w, code.data() + at, 2);
    at += 2;
    return w;
  }
  unsigned take(std::size_t i, const Frequencies& frequencies) {
    std::uint32_t& x = states[i % states.size()];
    const std::uint32_t place = x % 4096;
    unsigned value = 0;
    std::uint32_t begin = 0;
    while (place >= begin + frequencies[value]) begin += frequencies[value++];
    x = frequencies[value] * (x / 4096) + place - begin;
    if (x < 32768) x = x * 65536 + word();
    return value;
  }
  std::vector<unsigned> run(std::size_t count, const Frequencies& frequencies, bool escapes) {
    std::vector<unsigned> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(take(i, frequencies));
    std::size_t i = 0;
    if (escapes)
      for (unsigned& value : values)
        if (value == 255) value = take(i++, Frequencies(256, 16));
    return values;
  }
};

struct Block {
  int density = 0, magnitude = 0;
  std::vector<bool> nonzero = std::vector<bool>(128);
  std::vector<int> high = std::vector<int>(128);
};

inline int distance(unsigned folded) { return folded % 2 == 0 ? static_cast<int>(folded) / 2 : -static_cast<int>(folded + 1) / 2; }

inline std::vector<float> decode(std::span<const std::byte> code, std::size_t n, float step) {
  std::vector<float> out(n);
  const int kind = std::to_integer<int>(code[0]);
  if (kind == 0) return out;
  if (kind == 1) {
    std::memcpy(out.data(), code.data() + 1, 4 * n);
    return out;
  }
  const std::size_t states = kind == 2 ? 1 : kind == 3 ? 4 : 32;
  const unsigned tables = std::to_integer<unsigned>(code[1]) | std::to_integer<unsigned>(code[2]) << 8;
  Coder coder{std::vector<std::uint32_t>(states), code, 0};
  std::size_t bit = 8 * 3;
  const auto read_bits = [&](unsigned count) {
    std::uint32_t word = 0;
    for (unsigned k = 0; k < count; ++k, ++bit) word |= (std::to_integer<std::uint32_t>(code[bit / 8]) >> (bit % 8) & 1) << k;
    return word;
  };
  for (std::uint32_t& state : coder.states) {
    const unsigned exponent = 15 + read_bits(4);
    state = (1U << exponent) + read_bits(exponent);
  }
  coder.at = (bit + 7) / 8;

  // Classes.
  constexpr std::uint32_t kAfterZero[] = {1800, 2900, 3600, 3960}, kAfterOthers[] = {10, 100, 350, 1100};
  constexpr std::uint64_t kDecayZero[] = {12, 26, 40, 52}, kDecayOthers[] = {5, 13, 26, 42}, kDecay[] = {1, 3, 6, 11, 18, 26, 36, 48};
  const unsigned a = tables & 15, b = tables >> 4 & 15, m = tables >> 8;
  const Frequencies after_zero = of_distances(kAfterZero[a / 4], kDecayZero[a % 4], 11);
  const Frequencies after_others = of_distances(kAfterOthers[b / 4], kDecayOthers[b % 4], 11);
  const Frequencies magnitudes = of_distances(0, kDecay[m], 28);
  std::vector<Block> blocks((n + 127) / 128);
  std::size_t taken = 0;
  int density = 4, magnitude = 5;
  bool before = false;
  for (Block& block : blocks) {
    const unsigned value = coder.take(taken++, before ? after_others : after_zero);
    before = value != 0;
    if (value == 0) continue;
    block.density = density += distance(value - 1);
    block.magnitude = magnitude += distance(coder.take(taken++, magnitudes));
  }

  // Planes.
  constexpr std::uint64_t kProbabilities[] = {655, 1278, 2097, 2818, 5833, 11796, 19988, 25559, 28836, 32768, 34734, 36700, 39322};
  constexpr int kDensityTable[] = {-1, -1, 1, 3, 4, 5, 6, 8, 8, 6, 5, 4, 2};
  for (int d = 1; d <= 12; ++d) {
    std::vector<Block*> members;
    for (Block& block : blocks)
      if (block.density == d) members.push_back(&block);
    if (d == 1) {
      const auto places = coder.run(members.size(), Frequencies(128, 32), false);
      for (std::size_t i = 0; i < members.size(); ++i) members[i]->nonzero[places[i]] = true;
      continue;
    }
    bool escapes = false;
    const Frequencies frequencies = of_bits(kProbabilities[kDensityTable[d]], escapes);
    const auto bytes = coder.run(16 * members.size(), frequencies, escapes);
    for (std::size_t i = 0; i < members.size(); ++i)
      for (std::size_t e = 0; e < 128; ++e) members[i]->nonzero[e] = ((bytes[16 * i + e / 8] >> (e % 8) & 1) != 0) != (d >= 8);
  }
  constexpr int kFirst[] = {0, 1, 3, 4, 5, 6, 8, 12, 11, 10, 9}, kOthers[] = {0, 0, 1, 2, 4, 5, 7, 12, 11, 10, 9};
  for (int g = 1; g <= 28; ++g) {
    const int t = std::min(g, 10);
    std::vector<bool> bits;
    std::size_t next = 0;
    for (int plane = 1; plane <= 12; ++plane) {
      std::vector<std::pair<Block*, std::size_t>> asked;
      for (Block& block : blocks)
        for (std::size_t e = 0; e < 128; ++e)
          if (block.magnitude == g && block.nonzero[e] && block.high[e] == plane - 1) asked.emplace_back(&block, e);
      if (asked.empty()) break;
      if (plane == 2 && kFirst[t] != kOthers[t]) next = bits.size();
      bool escapes = false;
      const Frequencies frequencies = of_bits(kProbabilities[plane == 1 ? kFirst[t] : kOthers[t]], escapes);
      const std::size_t bytes = (next + asked.size() + 7) / 8 - bits.size() / 8;
      for (const unsigned byte : coder.run(bytes, frequencies, escapes))
        for (unsigned k = 0; k < 8; ++k) bits.push_back((byte >> k & 1) != 0);
      for (const auto& [block, e] : asked) block->high[e] += bits[next++] ? 1 : 0;
    }
  }

  // Signs, low bits and tails.
  std::vector<bool> raw;
  for (const std::uint32_t state : coder.states)
    for (int k = 0; k < 16; ++k) raw.push_back((state >> k & 1) != 0);
  std::size_t raw_bits = 0;
  for (const Block& block : blocks)
    raw_bits += static_cast<std::size_t>(std::count(block.nonzero.begin(), block.nonzero.end(), true)) * static_cast<std::size_t>(1 + std::max(0, block.magnitude - 7));
  while (raw.size() < raw_bits)
    for (int k = 0, byte = std::to_integer<int>(code[coder.at++]); k < 8; ++k) raw.push_back((byte >> k & 1) != 0);
  constexpr int kOffsets[] = {-44, -23, -20, -14, -9, 0, 8, 14, 19, 22, 24, 25, 26};
  std::size_t next = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    const int low_bits = std::max(0, block.magnitude - 7);
    std::vector<std::size_t> entries;
    for (std::size_t e = 0; e < 128; ++e)
      if (block.nonzero[e]) entries.push_back(e);
    std::vector<bool> negative;
    for (std::size_t k = 0; k < entries.size(); ++k) negative.push_back(raw[next++]);
    std::vector<int> low(entries.size());
    for (int j = 0; j < low_bits; ++j)
      for (int& bits : low) bits |= (raw[next++] ? 1 : 0) << j;
    for (std::size_t k = 0; k < entries.size(); ++k) {
      int high = block.high[entries[k]];
      float& value = out[128 * i + entries[k]];
      if (high == 12) {
        const int tail = std::to_integer<int>(code[coder.at++]);
        if (tail == 255) {
          std::memcpy(&value, code.data() + coder.at, 4);
          coder.at += 4;
          continue;
        }
        high += tail;
      }
      const float offset = static_cast<float>(kOffsets[std::min(block.magnitude, 12)]) / 256;
      value = (static_cast<float>(1 + (high << low_bits) + low[k]) + offset) * step;
      if (negative[k]) value = -value;
    }
  }
  if (coder.at != code.size()) throw std::runtime_error("bytes are left");
  return out;
}

// Bits that values given in no order cost if each costs -log2 of its share.
template <class Values>
double entropy_bits(const Values& values) {
  std::map<long, double> counts;
  for (const auto value : values) ++counts[static_cast<long>(value)];
  double bits = 0;
  for (const auto& [value, count] : counts) bits -= count * std::log2(count / static_cast<double>(values.size()));
  return bits;
}

// An ideal coder that knows the class of each block of 128, the mean of its levels in half octaves, which it codes too, and the
// distribution of levels in each class, which costs it nothing.
inline double ideal_bits(std::span<const float> values, float step) {
  std::map<long, std::vector<long>> levels;
  std::vector<long> classes;
  double bits = 0;
  for (std::size_t begin = 0; begin < values.size(); begin += 128) {
    const std::size_t end = std::min(values.size(), begin + 128);
    std::vector<long> block;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) {
      block.push_back(static_cast<long>(std::floor(std::fabs(double{values[i]}) / step + 0.4)));
      sum += static_cast<double>(block.back());
      bits += block.back() != 0 ? 1 : 0;
    }
    classes.push_back(sum == 0 ? -1000 : std::lround(2 * std::log2(sum / static_cast<double>(block.size()))));
    auto& others = levels[classes.back()];
    others.insert(others.end(), block.begin(), block.end());
  }
  for (const auto& [of_class, all] : levels) bits += entropy_bits(all);
  return bits + entropy_bits(classes);
}

}  // namespace thinwire::casq::reference
