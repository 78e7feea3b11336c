#include <bit>
#include <cmath>

#include "kernels/codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/assigning_floats.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/codes-inl.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr int kFloatMantissa = 23, kFloatBias = 127;

// Numbers of magnitudes, counted from 0, are what is left of their bits: denormals' once a float is added whose last bit is worth their distance,
// others' once the bits that are too many are rounded off.
template <std::size_t kBits>
class AssigningFloats {
 public:
  HWY_INLINE explicit AssigningFloats(const FewBitFloats& floats)
      : normal_(hn::Set(kFloat, std::ldexp(1.0F, floats.least_exponent))),
        added_(hn::Set(kFloat, std::ldexp(1.0F, floats.least_exponent - floats.mantissa_bits + kFloatMantissa))),
        shift_(kFloatMantissa - floats.mantissa_bits),
        nearly_half_(hn::Set(kIndex, (Index{1} << (shift_ - 1)) - 1)),
        first_(hn::Set(kIndex, (floats.least_exponent + kFloatBias - 1) << floats.mantissa_bits)),
        count_(hn::Set(kIndex, floats.count)) {}

  HWY_INLINE void operator()(const float* values, std::byte* planes) const {
    constexpr hn::Rebind<std::uint8_t, Tag<Index>> kByte;
    std::uint8_t codes[kLanes];
#if HWY_TARGET != HWY_SCALAR
    for (std::size_t i = 0; i + 1 < kVectors<float>; i += 2) {  // in stores as long as can be, which loads follow sooner
      constexpr hn::Twice<decltype(kByte)> kBytes;
      const auto low = hn::DemoteTo(kByte, code_of(load(values, i))), high = hn::DemoteTo(kByte, code_of(load(values, i + 1)));
      hn::StoreU(hn::Combine(kBytes, high, low), kBytes, codes + i * kWidth<Index>);
    }
    if (kVectors<float> == 1) hn::StoreU(hn::DemoteTo(kByte, code_of(load(values, 0))), kByte, codes);
#else
    for (std::size_t i = 0; i < kVectors<float>; ++i) hn::StoreU(hn::DemoteTo(kByte, code_of(load(values, i))), kByte, codes + i * kWidth<Index>);
#endif
    Packing<kBits>()(codes, planes);
  }

 private:
  static constexpr Tag<float> kFloat{};

  HWY_INLINE Vector<Index> code_of(Vector<float> x) const {
    const Vector<float> magnitude = hn::Abs(x);
    const Vector<Index> denormal = hn::Sub(hn::BitCast(kIndex, hn::Add(magnitude, added_)), hn::BitCast(kIndex, added_));
    const Vector<Index> bits = hn::BitCast(kIndex, magnitude);
    const Vector<Index> last = hn::And(hn::ShiftRightSame(bits, shift_), hn::Set(kIndex, 1));
    const Vector<Index> rounded = hn::ShiftRightSame(hn::Add(bits, hn::Add(nearly_half_, last)), shift_);
    const auto is_denormal = hn::RebindMask(kIndex, hn::Lt(magnitude, normal_));
    const Vector<Index> number = hn::Min(hn::IfThenElse(is_denormal, denormal, hn::Sub(rounded, first_)), count_);
    const auto negative = hn::RebindMask(kIndex, hn::Lt(x, hn::Zero(kFloat)));
    return hn::Add(count_, hn::IfThenElse(negative, hn::Neg(number), number));
  }

  Vector<float> normal_, added_;
  int shift_;
  Vector<Index> nearly_half_, first_, count_;
};

void assign_floats(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<std::byte> packed) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    for_each_group(values.size(), AssigningFloats<constant()>(floats), Column(values), CodesToPack<constant()>(packed));
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(assign_floats);

void assign(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<std::byte> packed) {
  HWY_DYNAMIC_DISPATCH(assign_floats)(values, floats, bits, packed);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
