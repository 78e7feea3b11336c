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
    pack_group<kBits>([&](std::size_t i) HWY_ATTR { return code_of(load(values, i)); }, planes);
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

// In fixed point: the place of a magnitude among numbers, `shift_` bits after the point. Those of floats that are not denormal have it in their bits.
// What is drawn is added, and carries.
template <std::size_t kBits>
class AssigningFloatsRandomly {
 public:
  HWY_INLINE explicit AssigningFloatsRandomly(const FewBitFloats& floats)
      : normal_(hn::Set(kFloat, std::ldexp(1.0F, floats.least_exponent))),
        inverse_normal_(hn::Set(kFloat, std::ldexp(1.0F, -floats.least_exponent))),
        shift_(kFloatMantissa - floats.mantissa_bits),
        most_drawn_(hn::Set(kIndex, (Index{1} << shift_) - 1)),
        first_(hn::Set(kIndex, (floats.least_exponent + kFloatBias - 1) << kFloatMantissa)),
        count_(hn::Set(kIndex, floats.count)) {}

  HWY_INLINE void operator()(const float* values, const std::uint32_t* words, std::byte* planes) const {
    pack_group<kBits>([&](std::size_t i) HWY_ATTR { return code_of(load(values, i), load(words, i)); }, planes);
  }

 private:
  static constexpr Tag<float> kFloat{};

  HWY_INLINE Vector<Index> code_of(Vector<float> x, Vector<std::uint32_t> word) const {
    const Vector<float> magnitude = hn::Abs(x);
    const Vector<float> of_normal = hn::Mul(magnitude, inverse_normal_);
    const Vector<Index> denormal = hn::NearestInt(hn::Mul(of_normal, hn::Set(kFloat, static_cast<float>(1 << kFloatMantissa))));
    const auto is_denormal = hn::RebindMask(kIndex, hn::Lt(magnitude, normal_));
    const Vector<Index> place = hn::IfThenElse(is_denormal, denormal, hn::Sub(hn::BitCast(kIndex, magnitude), first_));

    // A value goes up where what is drawn is less than its share of the way; a negative one's number carries where it goes down.
    const Vector<Index> sign = hn::BroadcastSignBit(hn::BitCast(kIndex, x));
    const Vector<Index> drawn = hn::BitCast(kIndex, hn::ShiftRightSame(word, 32 - shift_));
    const Vector<Index> carried = hn::Add(place, hn::Xor(drawn, hn::AndNot(sign, most_drawn_)));
    const Vector<Index> number = hn::Min(hn::ShiftRightSame(carried, shift_), count_);
    return hn::Add(count_, hn::Sub(hn::Xor(number, sign), sign));
  }

  Vector<float> normal_, inverse_normal_;
  int shift_;
  Vector<Index> most_drawn_, first_, count_;
};

void assign_floats_randomly(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<const std::uint32_t> words,
                            std::span<std::byte> packed) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    for_each_group(values.size(), AssigningFloatsRandomly<constant()>(floats), Column(values), Column(words), CodesToPack<constant()>(packed));
  });
}

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
HWY_EXPORT(assign_floats_randomly);

void assign(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<std::byte> packed) {
  HWY_DYNAMIC_DISPATCH(assign_floats)(values, floats, bits, packed);
}
void assign_randomly(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<const std::uint32_t> words,
                     std::span<std::byte> packed) {
  HWY_DYNAMIC_DISPATCH(assign_floats_randomly)(values, floats, bits, words, packed);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
