#include "kernels/statistics.h"

#include <bit>
#include <cmath>
#include <functional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/statistics.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/groups-inl.h"
#include "kernels/magnitudes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

struct Measuring {
  MagnitudeSums sums;
  HWY_INLINE void operator()(const float* values) {
    for (std::size_t i = 0; i < kVectors<float>; ++i) sums.add(i, load(values, i));
  }
};

Magnitudes measure(std::span<const float> values) {
  Measuring measuring;
  for_each_group(values.size(), measuring, Column(values));
  return measuring.sums.total();
}

struct Scanning {
  LargestMagnitude largest;
  HWY_INLINE void operator()(const float* values) {
    for (std::size_t i = 0; i < kVectors<float>; ++i) largest.add(i, load(values, i));
  }
  HWY_INLINE Scan total() const { return {.finite = largest.finite(), .largest = largest.value()}; }
};

template <std::size_t kExtent>
HWY_INLINE Scan scan_span(std::span<const float, kExtent> values) {
  Scanning scanning;
  for_each_group(values.size(), scanning, Column(std::span<const float>(values)));
  return scanning.total();
}

Scan scan(std::span<const float> values) { return scan_span(values); }

struct Multiplying {
  float factor;
  HWY_INLINE void operator()(float* values) const {
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      store(hn::Mul(load(values, i), hn::Set(Tag<float>(), factor)), values, i);
    }
  }
};

template <std::size_t kExtent>
HWY_INLINE void multiply_span(std::span<float, kExtent> values, float factor) {
  for_each_group(values.size(), Multiplying{factor}, Column(std::span<float>(values)));
}

void multiply(std::span<float> values, float factor) { multiply_span(values, factor); }

// body(b, values of the b-th bucket). Buckets of 32, as Microscaling formats have them, are no longer than a loop's overhead: they get code for their length.
template <class T, class Body>
HWY_INLINE void for_each_bucket(std::span<T> values, std::size_t bucket, const Body& body) {
  constexpr std::size_t kShort = 32;
  std::size_t b = 0, first = 0;
  if (bucket == kShort)
    for (; first + kShort <= values.size(); ++b, first += kShort) body(b, values.subspan(first).template first<kShort>());
  for (; first < values.size(); ++b, first += bucket) body(b, values.subspan(first, std::min(bucket, values.size() - first)));
}

void scan_buckets(std::span<const float> values, std::size_t bucket, std::span<float> largest) {
  for_each_bucket(values, bucket, [&](std::size_t b, auto own) HWY_ATTR { largest[b] = scan_span(own).largest; });
}

void multiply_buckets(std::span<float> values, std::size_t bucket, std::span<const float> factors) {
  for_each_bucket(values, bucket, [&](std::size_t b, auto own) HWY_ATTR { multiply_span(own, factors[b]); });
}

struct ScanningAndMultiplying {
  Scanning scanning;
  Multiplying multiplying;
  HWY_INLINE void operator()(float* values) {
    scanning(values);
    multiplying(values);
  }
};

Scan scan_and_multiply(std::span<float> values, float factor) {
  ScanningAndMultiplying both{.scanning = {}, .multiplying = {factor}};
  for_each_group(values.size(), both, Column(values));
  return both.scanning.total();
}

HWY_INLINE Vector<double> load_wide(const float* values, std::size_t i) {
  return hn::PromoteTo(Tag<double>(), hn::LoadU(hn::Rebind<float, Tag<double>>(), values + i * kWidth<double>));
}

struct SummingMoments {
  Lanes<double> sums, squares;
  HWY_INLINE void operator()(const float* values) {
    for (std::size_t i = 0; i < kVectors<double>; ++i) {
      const Vector<double> x = load_wide(values, i);
      sums[i] = hn::Add(sums[i], x);
      squares[i] = hn::Add(squares[i], hn::Mul(x, x));
    }
  }
};

struct SummingSquares {
  Lanes<double> squares;
  HWY_INLINE void operator()(const float* values) {
    for (std::size_t i = 0; i < kVectors<double>; ++i) {
      const Vector<double> x = load_wide(values, i);
      squares[i] = hn::Add(squares[i], hn::Mul(x, x));
    }
  }
};

double squared_norm(std::span<const float> values) {
  SummingSquares summing;
  for_each_group(values.size(), summing, Column(values));
  return summing.squares.fold(std::plus<double>());
}

Moments moments(std::span<const float> values) {
  SummingMoments summing;
  for_each_group(values.size(), summing, Column(values));
  return {.sum = summing.sums.fold(std::plus<double>()), .sum_squares = summing.squares.fold(std::plus<double>())};
}

struct Splitting {
  float bound;
  Lanes<std::int32_t> below_count;
  Lanes<float> excess, below;
  HWY_INLINE void operator()(const float* values) {
    const Vector<float> edge = hn::Set(Tag<float>(), bound);
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      const Vector<float> magnitude = hn::Abs(load(values, i));
      const auto is_below = hn::Lt(magnitude, edge);
      below_count[i] = hn::Sub(below_count[i], hn::VecFromMask(Tag<std::int32_t>(), hn::RebindMask(Tag<std::int32_t>(), is_below)));
      below[i] = hn::Add(below[i], hn::IfThenElseZero(is_below, magnitude));
      excess[i] = hn::Add(excess[i], hn::IfThenZeroElse(is_below, hn::Sub(magnitude, edge)));
    }
  }
};

// What fills a last group, zeros, is below any other bound than 0.
Split split_magnitudes(std::span<const float> values, float bound) {
  Splitting splitting{.bound = bound, .below_count = {}, .excess = {}, .below = {}};
  for_each_group(values.size(), splitting, Column(values));
  const auto below = static_cast<std::size_t>(splitting.below_count.fold(std::plus<std::int32_t>()));
  return {.from = bound > 0 ? values.size() + padding(values.size()) - below : values.size(),
          .excess = static_cast<double>(splitting.excess.fold(std::plus<float>())),
          .below = static_cast<double>(splitting.below.fold(std::plus<float>()))};
}

class Binning {
 public:
  HWY_INLINE Binning(float inverse_scale, std::span<std::int32_t> counts)
      : inverse_scale_(inverse_scale), counts_(counts) {}

  HWY_INLINE void operator()(const float* values) {
    std::int32_t bins[kLanes];
    for (std::size_t i = 0; i < kVectors<float>; ++i) store(bins_of(load(values, i)), bins, i);
    for (const std::int32_t bin : bins) {
      if (bin != kLeftOut) ++counts_[static_cast<std::size_t>(bin)];
    }
  }

 private:
  static constexpr Tag<std::int32_t> kTag{};
  static constexpr std::int32_t kLeftOut = -1;
  static constexpr int kShift = 23 - std::bit_width(SignedHistogram::kBinsPerOctave - 1U);
  static constexpr std::int32_t kFirst = (127 + SignedHistogram::kLowestOctave) * SignedHistogram::kBinsPerOctave;

  // A float's exponent and the first bits of its mantissa, read as one number, are the number of its bin.
  HWY_INLINE Vector<std::int32_t> bins_of(Vector<float> x) const {
    const Vector<float> scaled = hn::Mul(x, hn::Set(Tag<float>(), inverse_scale_));
    const auto unclamped = hn::Sub(hn::ShiftRight<kShift>(magnitude_bits(scaled)), hn::Set(kTag, kFirst));
    const auto bin = hn::Min(hn::Max(unclamped, hn::Zero(kTag)), hn::Set(kTag, SignedHistogram::kBins - 1));
    const auto positive = hn::RebindMask(kTag, hn::Gt(x, hn::Zero(Tag<float>())));
    const auto signed_bin = hn::Add(bin, hn::IfThenElseZero(positive, hn::Set(kTag, SignedHistogram::kBins)));
    const auto finite = hn::Lt(magnitude_bits(x), hn::Set(kTag, kInfinityBits));
    return hn::IfThenElse(finite, signed_bin, hn::Set(kTag, kLeftOut));
  }

  float inverse_scale_;
  std::span<std::int32_t> counts_;
};

void add_to_histogram(std::span<const float> values, float inverse_scale, std::span<std::int32_t> counts) {
  for_each_group(values.size(), Binning(inverse_scale, counts), Column(values));
  counts[0] -= static_cast<std::int32_t>(padding(values.size()));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(measure);
HWY_EXPORT(scan);
HWY_EXPORT(scan_and_multiply);
HWY_EXPORT(multiply);
HWY_EXPORT(scan_buckets);
HWY_EXPORT(multiply_buckets);
HWY_EXPORT(moments);
HWY_EXPORT(squared_norm);
HWY_EXPORT(split_magnitudes);
HWY_EXPORT(add_to_histogram);

Magnitudes measure(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(measure)(values); }

Scan scan(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(scan)(values); }

Scan scan_and_multiply(std::span<float> values, float factor) {
  return HWY_DYNAMIC_DISPATCH(scan_and_multiply)(values, factor);
}

void multiply(std::span<float> values, float factor) { HWY_DYNAMIC_DISPATCH(multiply)(values, factor); }

void scan_buckets(std::span<const float> values, std::size_t bucket, std::span<float> largest) {
  HWY_DYNAMIC_DISPATCH(scan_buckets)(values, bucket, largest);
}

void multiply_buckets(std::span<float> values, std::size_t bucket, std::span<const float> factors) {
  HWY_DYNAMIC_DISPATCH(multiply_buckets)(values, bucket, factors);
}

float inverse_of_denormal(float divisor, std::span<float> values) {
  constexpr float kLarger = 0x1p100F;
  multiply(values, kLarger);
  return 1 / (divisor * kLarger);
}

void divide(std::span<float> values, float divisor) { multiply(values, inverse_of(divisor, values)); }

Moments moments(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(moments)(values); }

double squared_norm(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(squared_norm)(values); }

void add_to_histogram(std::span<const float> values, float inverse_scale, std::span<std::int32_t> counts) {
  HWY_DYNAMIC_DISPATCH(add_to_histogram)(values, inverse_scale, counts);
}

Split split_magnitudes(std::span<const float> values, float bound) {
  Split split = HWY_DYNAMIC_DISPATCH(split_magnitudes)(values, bound);
  if (std::isfinite(split.excess) && std::isfinite(split.below)) return split;
  split.excess = split.below = 0;
  for (const float value : values) {
    const float magnitude = std::abs(value);
    (magnitude < bound ? split.below : split.excess) += static_cast<double>(magnitude < bound ? magnitude : magnitude - bound);
  }
  return split;
}

namespace {
double in_bin(int bin, double share) {
  const int octave = SignedHistogram::kLowestOctave + bin / SignedHistogram::kBinsPerOctave;
  const int step = bin % SignedHistogram::kBinsPerOctave;
  return std::ldexp(1.0 + (step + share) / SignedHistogram::kBinsPerOctave, octave);
}
}  // namespace

double histogram_centre(int bin) { return in_bin(bin, 0.5); }
double histogram_lower_edge(int bin) { return in_bin(bin, 0.0); }

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
