#include "kernels/hadamard.h"

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

constexpr Tag<float> kFloat{};

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

struct WithinGroups {
  HWY_INLINE void operator()(float* values) const {
    Vector<float> v[kVectors<float>];
    for (std::size_t i = 0; i < kVectors<float>; ++i) v[i] = load(values, i);
    within_group<1>(v);
    within_group<2>(v);
    within_group<4>(v);
    within_group<8>(v);
    for (std::size_t i = 0; i < kVectors<float>; ++i) store(v[i], values, i);
  }
};

// The pairs whose distances are `stride` to 2^(kStages - 1) times it, a multiple of 16: in one pass over memory.
template <std::size_t kStages>
HWY_INLINE void between_groups(std::span<float> values, std::size_t stride) {
  constexpr std::size_t kRows = std::size_t{1} << kStages;
  for (std::size_t block = 0; block < values.size(); block += kRows * stride)
    for (std::size_t first = block; first < block + stride; first += kWidth<float>) {
      Vector<float> v[kRows];
      for (std::size_t row = 0; row < kRows; ++row) v[row] = load(values.data() + first + row * stride, 0);
      for (std::size_t distance = 1; distance < kRows; distance *= 2)
        for (std::size_t row = 0; row < kRows; ++row)
          if ((row & distance) == 0) butterfly(v[row], v[row + distance]);
      for (std::size_t row = 0; row < kRows; ++row) store(v[row], values.data() + first + row * stride, 0);
    }
}

void hadamard(std::span<float> values) {
  for_each_group(values.size(), WithinGroups(), Column(values));
  std::size_t stride = kLanes;
  for (; 8 * stride <= values.size(); stride *= 8) between_groups<3>(values, stride);
  if (4 * stride == values.size()) between_groups<2>(values, stride);
  if (2 * stride == values.size()) between_groups<1>(values, stride);
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
