#include "kernels/selecting.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/selecting.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/groups-inl.h"
#include "kernels/magnitudes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

// Packs the places of magnitudes that are above a bound. Hardly any group has one, so groups are looked at as a whole first.
class Collecting {
 public:
  HWY_INLINE Collecting(std::int32_t bound, std::uint32_t* places) : bound_(bound), places_(places) {
    std::uint32_t lanes[kLanes];
    std::iota(lanes, lanes + kLanes, 0U);
    for (std::size_t i = 0; i < kVectors<float>; ++i) lanes_[i] = load(lanes, i);
  }

  HWY_INLINE void operator()(const float* values) {
    const Tag<std::int32_t> tag;
    const auto bound = hn::Set(tag, bound_);
    Lanes<std::int32_t> bits;
    auto largest = hn::Zero(tag);
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      bits[i] = magnitude_bits(load(values, i));
      largest = hn::Max(largest, bits[i]);
    }
    if (HWY_UNLIKELY(!hn::AllFalse(tag, hn::Gt(largest, bound)))) {
      const Tag<std::uint32_t> words;
      for (std::size_t i = 0; i < kVectors<float>; ++i) {
        const auto above = hn::RebindMask(words, hn::Gt(bits[i], bound));
        count_ += hn::CompressStore(hn::Add(lanes_[i], hn::Set(words, first_)), above, words, places_ + count_);
      }
    }
    first_ += kLanes;
  }
  HWY_INLINE std::size_t count() const { return count_; }

 private:
  std::int32_t bound_;
  std::uint32_t* places_;
  Lanes<std::uint32_t> lanes_;
  std::uint32_t first_ = 0;
  std::size_t count_ = 0;
};

// bound: 0 at least, which the zeros that fill a last group are not above.
std::size_t collect_above(std::span<const float> values, std::int32_t bound, std::span<std::uint32_t> places) {
  Collecting collecting(bound, places.data());
  for_each_group(values.size(), collecting, Column(values));
  return collecting.count();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(collect_above);

namespace {

constexpr std::size_t kGroup = 16;

std::int32_t magnitude_of(float value) { return std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF; }

// How often each value of some of a magnitude's bits occurs.
class Digits {
 public:
  static constexpr int kFirstBits = 12;  // the exponent and the first four bits of the fraction: 16 values an octave
  static constexpr int kFirstShift = 31 - kFirstBits;

  Digits(int bits, int shift) : shift_(shift), mask_((1 << bits) - 1) { std::fill_n(counts_.begin(), std::size_t{1} << bits, std::uint16_t{0}); }

  void count(std::int32_t magnitude) {
    const std::int32_t digit = magnitude >> shift_ & mask_;
    ++counts_[static_cast<std::size_t>(digit)];
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
    std::int32_t digit = largest_;
    while (above + counts_[static_cast<std::size_t>(digit)] < rank) above += counts_[static_cast<std::size_t>(digit--)];
    return {digit, above, counts_[static_cast<std::size_t>(digit)]};
  }

 private:
  int shift_;
  std::int32_t mask_, largest_ = 0;
  std::array<std::uint16_t, std::size_t{1} << kFirstBits> counts_;
};

// A magnitude that about `count` values, or more, are not below, by every step-th group of 16; by all of them exactly so, rounded down.
// 0 if the sample has too few.
std::int32_t likely_bound(std::span<const float> values, std::size_t count, std::size_t step) {
  Digits digits(Digits::kFirstBits, Digits::kFirstShift);
  std::size_t sampled = 0;
  for (std::size_t first = 0; first < values.size(); first += step * kGroup) {
    const auto group = values.subspan(first, std::min(kGroup, values.size() - first));
    for (const float value : group) digits.count(magnitude_of(value));
    sampled += group.size();
  }
  std::size_t rank = count;
  if (step > 1) {
    // Three standard deviations of a Poisson variable more: one in a thousand spans of independent values has to be looked at again.
    const double expected = static_cast<double>(count) * static_cast<double>(sampled) / static_cast<double>(values.size());
    rank = static_cast<std::size_t>(expected + 3 * std::sqrt(expected) + 4);
  }
  return rank > sampled ? 0 : digits.ranked(rank).digit << Digits::kFirstShift;
}

// What is taken: all that is above `magnitude`, and the first `equal` that have it.
struct Threshold {
  std::int32_t magnitude;
  std::size_t equal;
};

// Of `count` values at those places, whose magnitudes are told apart digit by digit.
Threshold threshold_of(std::span<const float> values, std::span<const std::uint32_t> places, std::size_t count) {
  struct Part {
    int bits, shift;
  };
  constexpr std::array<Part, 3> kParts = {{{Digits::kFirstBits, Digits::kFirstShift}, {10, 9}, {9, 0}}};
  std::int32_t known = 0, mask = 0;  // the threshold's first bits
  for (const Part& part : kParts) {
    Digits digits(part.bits, part.shift);
    for (const std::uint32_t place : places)
      if (const std::int32_t magnitude = magnitude_of(values[place]); (magnitude & mask) == known) digits.count(magnitude);
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
// exact threshold is found among these few. Where the sample has misled, all values are counted.
void select_largest(std::span<const float> values, std::span<std::uint16_t> places, std::span<std::uint32_t> room) {
  constexpr std::size_t kSampledGroups = 128;
  if (places.empty()) return;
  if (places.size() == values.size()) return std::iota(places.begin(), places.end(), std::uint16_t{0});
  std::size_t step = (values.size() / kGroup / kSampledGroups) | 1;  // odd: rows of a matrix often have a power of two of entries
  std::size_t found = 0;
  while (true) {
    const std::int32_t bound = likely_bound(values, places.size(), step);
    if (bound > 0 || step == 1) found = HWY_DYNAMIC_DISPATCH(collect_above)(values, std::max(bound - 1, 0), room);
    if (found >= places.size() || step == 1) break;
    step = 1;
  }
  // What is not collected now, even so, is zero.
  if (found < places.size()) return take(values, {0, places.size() - found}, places, [](std::size_t i) { return i; });
  const auto collected = room.first(found);
  take(values, threshold_of(values, collected, places.size()), places, [&](std::size_t i) { return collected[i]; });
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
