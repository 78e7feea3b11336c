#include "kernels/selecting.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/selecting.cc"
#include "hwy/foreach_target.h"  // must come before the next four
#include "hwy/highway.h"
#include "kernels/codes-inl.h"
#include "kernels/groups-inl.h"
#include "kernels/magnitudes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

// Bit e of a group's plane: whether the magnitude of its element e is above a bound.
struct Marking {
  std::int32_t bound;
  HWY_INLINE void operator()(const float* values, Plane* plane) const {
    const Tag<std::int32_t> tag;
    const auto above = [&](std::size_t i) { return hn::Gt(magnitude_bits(load(values, i)), hn::Set(tag, bound)); };
    if constexpr (kWidth<float> % 8 == 0) {  // whole bytes need no putting together
      for (std::size_t i = 0; i < kVectors<float>; ++i)
        hn::StoreMaskBits(tag, above(i), reinterpret_cast<std::uint8_t*>(plane) + i * kWidth<float> / 8);
    } else {
      unsigned marks = 0;
      for (std::size_t i = 0; i < kVectors<float>; ++i) marks |= plane_of<std::int32_t>(above(i), i);
      *plane = static_cast<Plane>(marks);
    }
  }
};

// planes: eight bytes more than the groups need, which may be written. What fills a last group is marked if 0 is above the bound.
void mark_above(std::span<const float> values, std::int32_t bound, std::span<std::uint16_t> planes) {
  const Marking marking{bound};
  Plane* plane = planes.data();
  for_each_group(values.size(), [&](const float* group) { marking(group, plane++); }, Column(values));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(mark_above);

namespace {

constexpr std::size_t kGroup = 16;

std::int32_t magnitude_of(float value) { return std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF; }

// How often each value of some of a magnitude's bits occurs.
class Digits {
 public:
  static constexpr int kFirstBits = 12;  // the exponent and the first four bits of the fraction: 16 values an octave
  static constexpr int kFirstShift = 31 - kFirstBits;

  Digits(int bits, int shift) : shift_(shift), mask_((1 << bits) - 1) {
    for (Counts& counts : counts_) std::fill_n(counts.begin(), std::size_t{1} << bits, std::uint16_t{0});
  }

  // turn: any number, another one than the last time. Magnitudes in a row often have the same digit, and what was just written is slow to
  // be read again: counts take turns.
  void count(std::int32_t magnitude, std::size_t turn) {
    const std::int32_t digit = magnitude >> shift_ & mask_;
    ++counts_[turn % 2][static_cast<std::size_t>(digit)];
    largest_ = std::max(largest_, digit);
  }

  // The largest digit that `rank` counted ones, at least, are not below; and how many are above it, and have it.
  struct Ranked {
    std::int32_t digit;
    std::size_t above;
    std::size_t equal;
  };
  // Pre: rank is not 0, and so many were counted.
  Ranked ranked(std::size_t rank) const {
    std::size_t above = 0;
    for (std::int32_t digit = largest_;; --digit) {
      const auto at = static_cast<std::size_t>(digit);
      const std::size_t equal = std::size_t{counts_[0][at]} + counts_[1][at];
      if (above + equal >= rank) return {digit, above, equal};
      above += equal;
    }
  }

 private:
  using Counts = std::array<std::uint16_t, std::size_t{1} << kFirstBits>;
  int shift_;
  std::int32_t mask_, largest_ = 0;
  std::array<Counts, 2> counts_;
};

// A magnitude that `count` values are likely not to be below, and not many more: by a sample of whole groups. 0 if it has too few.
std::int32_t likely_bound(std::span<const float> values, std::size_t count) {
  constexpr std::size_t kSampledGroups = 128;
  // Odd: rows of a matrix often have a power of two of entries.
  const std::size_t step = (values.size() / kGroup / kSampledGroups) | 1;
  Digits digits(Digits::kFirstBits, Digits::kFirstShift);
  std::size_t sampled = 0;
  for (std::size_t first = 0; first < values.size(); first += step * kGroup)
    for (const float value : values.subspan(first, std::min(kGroup, values.size() - first))) digits.count(magnitude_of(value), sampled++);
  // Three standard deviations of a Poisson variable more: one in a thousand spans of independent values has to be looked at again.
  const double expected = static_cast<double>(count) * static_cast<double>(sampled) / static_cast<double>(values.size());
  const auto rank = static_cast<std::size_t>(expected + 3 * std::sqrt(expected) + 4);
  return rank > sampled ? 0 : digits.ranked(rank).digit << Digits::kFirstShift;
}

// Packs the places of magnitudes above a bound, and returns their number. Most words have few: the first four places of each are written
// without asking how many there are, and the next ones overwrite what was none.
std::size_t collect_above(std::span<const float> values, std::int32_t bound, std::span<std::uint16_t> places) {
  constexpr std::size_t kWord = 64, kUnasked = 4;
  std::array<std::uint64_t, kMostSelected / kWord + 2> words;
  const std::size_t count = (values.size() + kWord - 1) / kWord;
  static_assert(std::endian::native == std::endian::little, "four planes of 16 bits are a word");
  HWY_DYNAMIC_DISPATCH(mark_above)(values, bound, {reinterpret_cast<std::uint16_t*>(words.data()), 4 * (count + 1)});
  words[count - 1] &= ~std::uint64_t{0} >> (kWord * count - values.size());  // where there are no values, anything may stand
  std::size_t found = 0;
  for (std::size_t w = 0; w < count; ++w) {
    std::uint64_t word = words[w];
    const auto marked = static_cast<std::size_t>(std::popcount(word));
    const auto take_next = [&](std::size_t i) {
      places[found + i] = static_cast<std::uint16_t>(w * kWord + static_cast<std::size_t>(std::countr_zero(word)));
      word &= word - 1;
    };
    for (std::size_t i = 0; i < kUnasked; ++i) take_next(i);
    for (std::size_t i = kUnasked; i < marked; ++i) take_next(i);
    found += marked;
  }
  return found;
}

// What is taken: all that is above `magnitude`, and the first `equal` that have it.
struct Threshold {
  std::int32_t magnitude;
  std::size_t equal;
};

// Of `count` values at those places, whose magnitudes are told apart digit by digit.
Threshold threshold_of(std::span<const float> values, std::span<const std::uint16_t> places, std::size_t count) {
  struct Part {
    int bits, shift;
  };
  constexpr std::array<Part, 3> kParts = {{{Digits::kFirstBits, Digits::kFirstShift}, {10, 9}, {9, 0}}};
  std::int32_t known = 0, mask = 0;  // the threshold's first bits
  for (const Part& part : kParts) {
    Digits digits(part.bits, part.shift);
    for (std::size_t i = 0; i < places.size(); ++i)
      if (const std::int32_t magnitude = magnitude_of(values[places[i]]); (magnitude & mask) == known) digits.count(magnitude, i);
    const Digits::Ranked found = digits.ranked(count);
    known |= found.digit << part.shift;
    mask |= ((1 << part.bits) - 1) << part.shift;
    count -= found.above;
    if (found.equal == count) return {known - 1, 0};  // all that begin so
  }
  return {known, count};
}

// taken <- the places, of those that place(0), place(1), ... are, that a threshold leaves; as many as there are.
template <class Place>
void take(std::span<const float> values, Threshold threshold, std::span<std::uint16_t> taken, const Place& place) {
  std::size_t found = 0;
  for (std::size_t i = 0; found < taken.size(); ++i) {
    const std::int32_t magnitude = magnitude_of(values[place(i)]);
    const bool is_equal = magnitude == threshold.magnitude && threshold.equal > 0;
    threshold.equal -= is_equal ? 1 : 0;
    taken[found] = static_cast<std::uint16_t>(place(i));
    found += is_equal || magnitude > threshold.magnitude ? 1 : 0;
  }
}

}  // namespace

// A sample tells a bound that somewhat more values than are wanted are likely to be above; one pass packs their places, and the
// exact threshold is found among these few. Where the sample has misled, it is found among all that are not zero.
void select_largest(std::span<const float> values, std::span<std::uint16_t> places, std::span<std::uint16_t> room) {
  if (places.empty()) return;
  if (places.size() == values.size()) return std::iota(places.begin(), places.end(), std::uint16_t{0});
  const std::int32_t bound = std::max(likely_bound(values, places.size()) - 1, 0);
  std::size_t found = collect_above(values, bound, room);
  if (found < places.size() && bound > 0) found = collect_above(values, 0, room);
  if (found < places.size()) return take(values, {0, places.size() - found}, places, [](std::size_t i) { return i; });
  const auto collected = room.first(found);
  take(values, threshold_of(values, collected, places.size()), places, [&](std::size_t i) { return collected[i]; });
}

std::size_t select_from(std::span<const float> values, float least, std::span<std::uint16_t> room) {
  return values.empty() ? 0 : collect_above(values, magnitude_of(least) - 1, room);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
