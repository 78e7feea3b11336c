// Codes of groups, vector by vector, and the tables that say what they mean. Included once a target.
#if defined(THINWIRE_KERNELS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_CODES_INL_H_
#undef THINWIRE_KERNELS_CODES_INL_H_
#else
#define THINWIRE_KERNELS_CODES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "hwy/highway.h"
#include "kernels/codes.h"
#include "kernels/groups-inl.h"
#include "kernels/planes-inl.h"
#include "kernels/spread-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr std::size_t kMostShiftedBits = 4;

// The codes of a group, vector by vector.
template <std::size_t kBits>
class CodesOfGroup {
 public:
  HWY_INLINE explicit CodesOfGroup(const std::byte* planes) { Unpacking<kBits>()(planes, codes_); }
  HWY_INLINE Vector<Index> operator[](std::size_t i) const {
    return hn::PromoteTo(kIndex, hn::LoadU(hn::Rebind<std::uint8_t, Tag<Index>>(), codes_ + i * kWidth<Index>));
  }

 private:
  std::uint8_t codes_[kLanes];
};

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
// Lanes that can be shifted by a number each take their bits from two planes at a time, which are the halves of a word.
template <std::size_t kBits>
  requires(kBits <= kMostShiftedBits)
class CodesOfGroup<kBits> {
 public:
  HWY_INLINE explicit CodesOfGroup(const std::byte* planes) {
    for (std::size_t p = 0; p < kPairs; ++p) {
      std::uint32_t pair = 0;
      std::memcpy(&pair, planes + 2 * p * kPlaneBytes, std::min(std::size_t{2}, kBits - 2 * p) * kPlaneBytes);
      pairs_[p] = pair;
    }
  }
  HWY_INLINE Vector<Index> operator[](std::size_t i) const {
    constexpr Tag<std::uint32_t> kWord;
    const auto lane = hn::Iota(kWord, static_cast<std::uint32_t>(i * kWidth<Index>));
    Vector<Index> codes = hn::Zero(kIndex), none = hn::Zero(kIndex);
    for (std::size_t p = 0; p < kPairs; ++p) {
      const auto bits = hn::And(hn::Shr(hn::Set(kWord, pairs_[p]), lane), hn::Set(kWord, 0x00010001));
      const auto weights = hn::Set(kWord, 0x00020001u << (2 * p));
      codes = hn::ReorderWidenMulAccumulate(kIndex, hn::BitCast(kHalves, bits), hn::BitCast(kHalves, weights), codes, none);
    }
    return codes;
  }

 private:
  static constexpr std::size_t kPairs = (kBits + 1) / 2;
  static constexpr hn::Repartition<std::int16_t, Tag<Index>> kHalves{};
  std::uint32_t pairs_[kPairs];
};
#endif

template <std::size_t kBits>
constexpr bool kFitsTwoVectors = (std::size_t{1} << kBits) <= 2 * kWidth<float>;

// Looks codes up in memory.
template <std::size_t kBits>
class Table {
 public:
  static constexpr bool kIsQuick = false;
  HWY_INLINE explicit Table(std::span<const float> table) : table_(table.data()) {}
  HWY_INLINE Vector<float> operator[](Vector<Index> codes) const {
    return hn::GatherIndex(Tag<float>(), table_, codes);
  }

 private:
  const float* table_;
};

#if HWY_TARGET != HWY_SCALAR
// Looks codes up in registers.
template <std::size_t kBits>
  requires kFitsTwoVectors<kBits>
class Table<kBits> {
 public:
  static constexpr bool kIsQuick = (std::size_t{1} << kBits) <= kWidth<float>;
  HWY_INLINE explicit Table(std::span<const float> table) : low_(first<kInLow>(table.data())) {
    if constexpr (kEntries > kInLow) high_ = first<kEntries - kInLow>(table.data() + kInLow);
  }

  HWY_INLINE Vector<float> operator[](Vector<Index> codes) const {
    if constexpr (kEntries <= kInLow) return hn::TableLookupLanes(low_, lanes(codes));
    const auto last_low = hn::Set(kIndex, static_cast<Index>(kWidth<float> - 1));
    const auto within = lanes(hn::And(codes, last_low));
    const auto in_high = hn::RebindMask(Tag<float>(), hn::Gt(codes, last_low));
    return hn::IfThenElse(in_high, hn::TableLookupLanes(high_, within), hn::TableLookupLanes(low_, within));
  }

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << kBits;
  static constexpr std::size_t kInLow = std::min(kEntries, kWidth<float>);
  static HWY_INLINE auto lanes(Vector<Index> codes) { return hn::IndicesFromVec(Tag<float>(), codes); }
  // A vector that begins with so many entries, and reads no others.
  template <std::size_t kCount>
  static HWY_INLINE Vector<float> first(const float* entries) {
    constexpr Tag<float> kTag;
    if constexpr (kCount == kWidth<float>) return load(entries, 0);
    else if constexpr (kCount == 1) return hn::Set(kTag, entries[0]);
    else if constexpr (kCount == 2) return hn::OddEven(hn::Set(kTag, entries[1]), hn::Set(kTag, entries[0]));
    else if constexpr (kCount == 4) return hn::LoadDup128(kTag, entries);
    else return hn::ZeroExtendVector(kTag, hn::LoadU(hn::Half<Tag<float>>(), entries));
  }

  Vector<float> low_;
  Vector<float> high_;
};
#endif

// Computes what codes mean, where the table is evenly spaced.
template <std::size_t kBits>
class Line {
 public:
  static constexpr bool kIsQuick = true;
  HWY_INLINE explicit Line(const Levels& levels) : largest_(levels.largest), step_(levels.step) {}
  HWY_INLINE Vector<float> operator[](Vector<Index> codes) const {
    const auto level = hn::Sub(hn::Min(codes, hn::Set(kIndex, largest_)), hn::Set(kIndex, largest_ / 2));
    return hn::Mul(hn::ConvertTo(Tag<float>(), level), hn::Set(Tag<float>(), step_));
  }

 private:
  Index largest_;
  float step_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_CODES_INL_H_
