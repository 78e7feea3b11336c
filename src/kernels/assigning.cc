#include "kernels/codes.h"

#include <array>
#include <functional>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/assigning.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/codes-inl.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

// The values of one cluster. AVX-512 has masked additions; elsewhere a blend costs more than to add zeros, which gives
// the same bits, since a sum that began at +0 is never -0.
class Cluster {
 public:
  HWY_INLINE void add_where(MaskOf<float> mask, std::size_t i, Vector<float> x) {
    const auto counted = hn::RebindMask(kCount, mask);
    if constexpr (HWY_CAP_GE512) {
      sums_[i] = hn::IfThenElse(mask, hn::Add(sums_[i], x), sums_[i]);
      counts_[i] = hn::IfThenElse(counted, hn::Add(counts_[i], hn::Set(kCount, 1)), counts_[i]);
    } else {
      sums_[i] = hn::Add(sums_[i], hn::IfThenElseZero(mask, x));
      counts_[i] = hn::Sub(counts_[i], hn::VecFromMask(kCount, counted));  // true is -1
    }
  }
  HWY_INLINE float sum() const { return sums_.fold(std::plus<float>()); }
  HWY_INLINE std::uint32_t count() const { return static_cast<std::uint32_t>(counts_.fold(std::plus<std::int32_t>())); }

 private:
  static constexpr Tag<std::int32_t> kCount{};
  Lanes<float> sums_;
  Lanes<std::int32_t> counts_;
};

template <std::size_t kBits>
class Assigning {
 public:
  HWY_INLINE explicit Assigning(std::span<const float> thresholds) {
    for (std::size_t t = 0; t < kThresholds; ++t) thresholds_[t] = hn::Set(Tag<float>(), thresholds[t]);
  }

  HWY_INLINE void operator()(const float* values, std::byte* planes) {
    unsigned plane[kBits] = {};
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      MaskOf<float> bits[kBits];
      add(load(values, i), i, bits);
      for (std::size_t k = 0; k < kBits; ++k) plane[k] |= plane_of<float>(bits[k], i);
    }
    for (std::size_t k = 0; k < kBits; ++k) store_plane(plane[k], planes, k);
  }

  HWY_INLINE ClusterSums total() const {
    ClusterSums total;
    for (std::size_t c = 0; c <= kThresholds; ++c) {
      total.sum[c] = clusters_[c].sum();
      total.count[c] = clusters_[c].count();
    }
    return total;
  }

 private:
  static constexpr std::size_t kThresholds = (std::size_t{1} << kBits) - 1;

  // Adds x to its clusters, and finds the bits of its codes. What is above a threshold is above all before it. So the
  // last code reached but not passed is the cluster; and bit k of a code, the parity of code >> k, is the parity of how
  // many multiples of 2^k are reached.
  HWY_INLINE void add(Vector<float> x, std::size_t i, MaskOf<float> (&bits)[kBits]) {
    MaskOf<float> reached = hn::Gt(x, thresholds_[0]);
    clusters_[0].add_where(hn::Not(reached), i, x);
    bits[0] = reached;
#pragma GCC unroll 16
    for (std::size_t code = 2; code <= kThresholds; ++code) {
      const MaskOf<float> passed = hn::Gt(x, thresholds_[code - 1]);
      clusters_[code - 1].add_where(hn::AndNot(passed, reached), i, x);
      reached = passed;
      for (std::size_t k = 0; k < kBits; ++k) {
        const std::size_t step = std::size_t{1} << k;
        if (code % step == 0) bits[k] = code == step ? reached : hn::Xor(bits[k], reached);
      }
    }
    clusters_[kThresholds].add_where(reached, i, x);
  }

  Vector<float> thresholds_[kThresholds];
  Cluster clusters_[kThresholds + 1];
};

// The thresholds that a code's first kLevel bits may lead to, and those of the levels below.
template <std::size_t kLevel, std::size_t kBits>
class SearchLevels {
 public:
  HWY_INLINE explicit SearchLevels(std::span<const float> thresholds)
      : entries_(every(thresholds)), table_(entries_), below_(thresholds) {}
  SearchLevels(const SearchLevels&) = delete;
  SearchLevels& operator=(const SearchLevels&) = delete;

  // Finds the rest of the codes of a group's i-th vector.
  HWY_INLINE void descend(Vector<float> x, std::size_t i, Vector<Index>& code, unsigned (&plane)[kBits]) const {
    const MaskOf<float> above = hn::Gt(x, table_[code]);
    plane[kBits - 1 - kLevel] |= plane_of<float>(above, i);
    code = hn::Sub(hn::Add(code, code), hn::VecFromMask(kIndex, hn::RebindMask(kIndex, above)));  // true is -1
    below_.descend(x, i, code, plane);
  }

 private:
  using Entries = std::array<float, std::size_t{1} << kLevel>;
  static Entries every(std::span<const float> thresholds) {
    constexpr std::size_t kStride = std::size_t{1} << (kBits - kLevel);
    Entries entries;
    for (std::size_t e = 0; e < entries.size(); ++e) entries[e] = thresholds[e * kStride + kStride / 2 - 1];
    return entries;
  }

  Entries entries_;
  Table<kLevel> table_;
  SearchLevels<kLevel + 1, kBits> below_;
};
template <std::size_t kBits>
class SearchLevels<kBits, kBits> {
 public:
  explicit SearchLevels(std::span<const float>) {}
  HWY_INLINE void descend(Vector<float>, std::size_t, Vector<Index>&, unsigned (&)[kBits]) const {}
};

// More thresholds than registers hold: a value searches its code, most significant bit first. Sums are added one value
// after another, as no two values of a group share a lane.
template <std::size_t kBits>
class Searching {
 public:
  HWY_INLINE explicit Searching(std::span<const float> thresholds) : levels_(thresholds) {}

  HWY_INLINE void operator()(const float* values, std::byte* planes) {
    unsigned plane[kBits] = {};
    Index codes[kLanes];
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      Vector<Index> code = hn::Zero(kIndex);
      levels_.descend(load(values, i), i, code, plane);
      store(code, codes, i);
    }
    for (std::size_t k = 0; k < kBits; ++k) store_plane(plane[k], planes, k);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto code = static_cast<std::size_t>(codes[lane]);
      sums_[code][lane] += values[lane];
      ++counts_[code];
    }
  }

  HWY_INLINE ClusterSums total() const {
    ClusterSums total;
    for (std::size_t c = 0; c < kClusters; ++c) {
      total.sum[c] = std::accumulate(sums_[c] + 1, sums_[c] + kLanes, sums_[c][0]);
      total.count[c] = counts_[c];
    }
    return total;
  }

 private:
  static constexpr std::size_t kClusters = std::size_t{1} << kBits;

  SearchLevels<0, kBits> levels_;
  float sums_[kClusters][kLanes] = {};
  std::uint32_t counts_[kClusters] = {};
};

constexpr std::size_t kMostComparedBits = 4;

ClusterSums assign(std::span<const float> values, std::span<const float> thresholds, int bits,
                   std::span<std::byte> packed) {
  ClusterSums clusters = with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    std::conditional_t<(constant() <= kMostComparedBits), Assigning<constant()>, Searching<constant()>> assigning(thresholds);
    for_each_group(values.size(), assigning, Column(values), CodesToPack<constant()>(packed));
    return assigning.total();
  });
  std::size_t zero = 0;  // the code of the zeros in the padding
  while (zero < thresholds.size() && 0 > thresholds[zero]) ++zero;
  clusters.count[zero] -= static_cast<std::uint32_t>(padding(values.size()));
  return clusters;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(assign);

ClusterSums assign(std::span<const float> values, std::span<const float> thresholds, int bits,
                   std::span<std::byte> packed) {
  return HWY_DYNAMIC_DISPATCH(assign)(values, thresholds, bits, packed);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
