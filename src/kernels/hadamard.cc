#include "kernels/hadamard.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hadamard.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/codes-inl.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {


HWY_INLINE void butterfly(Vector<float>& a, Vector<float>& b) {
  const Vector<float> sum = hn::Add(a, b);
  b = hn::Sub(a, b);
  a = sum;
}

// Lanes change places with those that are kStride away.
template <std::size_t kStride>
HWY_INLINE Vector<float> exchanged(Vector<float> v) {
  static_assert(kStride < kWidth<float>);
#if HWY_TARGET != HWY_SCALAR  // which has one lane
  if constexpr (kStride == 1) return hn::Shuffle2301(v);
  if constexpr (kStride == 2) return hn::Shuffle1032(v);
#endif
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  if constexpr (kStride == 4) return hn::SwapAdjacentBlocks(v);
#endif
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if constexpr (kStride == 8) return hn::ConcatLowerUpper(kFloat, v, v);
#endif
  return v;
}

// -1 in the lanes that are the upper ones of their pairs: the sign bit is.
template <std::size_t kStride>
HWY_INLINE Vector<float> sign_of_upper() {
  constexpr Tag<std::int32_t> kWhole;
  const auto lane = hn::Iota(kWhole, 0), stride = hn::Set(kWhole, static_cast<std::int32_t>(kStride));
  const auto upper = hn::RebindMask(kFloat, hn::Eq(hn::And(lane, stride), stride));
  return hn::IfThenElseZero(upper, hn::Set(kFloat, -0.0F));
}

// The pairs within a group whose distance is kStride.
template <std::size_t kStride>
HWY_INLINE void within_group(Vector<float> (&v)[kVectors<float>]) {
  if constexpr (kStride < kWidth<float>) {
    const Vector<float> sign = sign_of_upper<kStride>();
    for (Vector<float>& vector : v) vector = hn::Add(exchanged<kStride>(vector), hn::Xor(vector, sign));
  } else {
    constexpr std::size_t kDistance = kStride / kWidth<float>;
    for (std::size_t i = 0; i < kVectors<float>; ++i)
      if ((i & kDistance) == 0) butterfly(v[i], v[i + kDistance]);
  }
}

// Vectors at once, of which registers hold as many.
constexpr std::size_t kHeld = HWY_TARGET <= HWY_AVX3 ? 16 : 8;

// The pairs of rows whose distance is kDistance, then those whose is twice that, and so on.
template <std::size_t kDistance, std::size_t kRows, std::size_t kColumns>
HWY_INLINE void between(Vector<float> (&v)[kRows][kColumns]) {
  if constexpr (kDistance < kRows) {
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRows; ++row)
      for (std::size_t i = 0; i < kColumns; ++i)
        if ((row & kDistance) == 0) butterfly(v[row][i], v[row + kDistance][i]);
    between<2 * kDistance>(v);
  }
}

// The pairs within kGroups groups, of which there are whole numbers.
template <std::size_t kGroups>
HWY_INLINE void within_groups(std::span<float> values) {
  for (std::size_t first = 0; first < values.size(); first += kGroups * kLanes) {
    float* const block = values.data() + first;
    Vector<float> v[kGroups][kVectors<float>];
#pragma GCC unroll 16
    for (std::size_t g = 0; g < kGroups; ++g) {
      for (std::size_t i = 0; i < kVectors<float>; ++i) v[g][i] = load(block + g * kLanes, i);
      within_group<1>(v[g]);
      within_group<2>(v[g]);
      within_group<4>(v[g]);
      within_group<8>(v[g]);
    }
    between<1>(v);
#pragma GCC unroll 16
    for (std::size_t g = 0; g < kGroups; ++g)
      for (std::size_t i = 0; i < kVectors<float>; ++i) store(v[g][i], block + g * kLanes, i);
  }
}

// The pairs whose distances are `stride` to 2^(kStages - 1) times it, a multiple of 16: in one pass over memory.
template <std::size_t kStages>
HWY_INLINE void between_groups(std::span<float> values, std::size_t stride) {
  constexpr std::size_t kRows = std::size_t{1} << kStages;
  for (std::size_t block = 0; block < values.size(); block += kRows * stride)
    for (std::size_t first = block; first < block + stride; first += kWidth<float>) {
      Vector<float> v[kRows][1];
      for (std::size_t row = 0; row < kRows; ++row) v[row][0] = load(values.data() + first + row * stride, 0);
      between<1>(v);
      for (std::size_t row = 0; row < kRows; ++row) store(v[row][0], values.data() + first + row * stride, 0);
    }
}

// So many doublings at once while there are as many, then those that are left; from pairs that are `stride` apart on.
template <std::size_t kStages>
HWY_INLINE void further(std::span<float> values, std::size_t stride) {
  for (; stride << kStages <= values.size(); stride <<= kStages) between_groups<kStages>(values, stride);
  if constexpr (kStages > 1) further<kStages - 1>(values, stride);
}

constexpr std::size_t kNear = 4096;  // values that stay in the nearest cache
// As many as registers hold; of what is far apart no more than eight rows, as those of sixteen would not find room in a cache of eight ways.
constexpr std::size_t kNearStages = kHeld == 16 ? 4 : 3, kFarStages = 3;

void hadamard(std::span<float> values) {
  constexpr std::size_t kGroups = std::max<std::size_t>(kHeld / kVectors<float>, 1), kAtOnce = kGroups * kLanes;
  if (values.size() < kAtOnce) {
    within_groups<1>(values);
    return further<kNearStages>(values, kLanes);
  }
  for (std::size_t first = 0; first < values.size(); first += kNear) {
    const auto near = values.subspan(first, std::min(kNear, values.size()));
    within_groups<kGroups>(near);
    further<kNearStages>(near, kAtOnce);
  }
  further<kFarStages>(values, kNear);
}

struct Negating {
  HWY_INLINE void operator()(float* values, const std::byte* plane) const {
    const Plane negative = load_plane(plane, 0);
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      const auto sign = hn::IfThenElseZero(mask_of<float>(negative, i), hn::Set(kFloat, -0.0F));
      store(hn::Xor(load(values, i), sign), values, i);
    }
  }
};

void negate_where(std::span<const std::byte> packed, std::span<float> values) {
  for_each_group(values.size(), Negating(), Column(values), PackedCodes<1>(packed));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(hadamard);
HWY_EXPORT(negate_where);

void hadamard(std::span<float> values) { HWY_DYNAMIC_DISPATCH(hadamard)(values); }
void negate_where(std::span<const std::byte> packed, std::span<float> values) { HWY_DYNAMIC_DISPATCH(negate_where)(packed, values); }

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
