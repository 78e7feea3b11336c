#include <bit>
#include <cmath>

#include "kernels/codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/assigning_floats.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/groups-inl.h"
#include "kernels/spread-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr int kFloatMantissa = 23, kFloatBias = 127;

// Numbers of magnitudes, counted from 0, are what is left of their bits: denormals' once a float is added whose last bit is worth their distance,
// others' once the bits that are too many are rounded off.
class AssigningFloats {
 public:
  HWY_INLINE explicit AssigningFloats(const FewBitFloats& floats)
      : normal_(hn::Set(kFloat, std::ldexp(1.0F, floats.least_exponent))),
        added_(hn::Set(kFloat, std::ldexp(1.0F, floats.least_exponent - floats.mantissa_bits + kFloatMantissa))),
        shift_(kFloatMantissa - floats.mantissa_bits),
        nearly_half_(hn::Set(kIndex, (Index{1} << (shift_ - 1)) - 1)),
        first_(hn::Set(kIndex, (floats.least_exponent + kFloatBias - 1) << floats.mantissa_bits)),
        count_(hn::Set(kIndex, floats.count)) {}

  HWY_INLINE Vector<Index> operator()(Vector<float> x) const {
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

 private:

  Vector<float> normal_, added_;
  int shift_;
  Vector<Index> nearly_half_, first_, count_;
};

// In fixed point: the place of a value among numbers, `shift_` bits after the point, from which what is drawn is taken away. A magnitude's place is in the
// bits of twice itself where it is a normal float, else in those of its sum with the least normal float; whichever is larger.
class AssigningFloatsRandomly {
 public:
  HWY_INLINE explicit AssigningFloatsRandomly(const FewBitFloats& floats)
      : normal_(hn::Set(kFloat, std::ldexp(1.0F, floats.least_exponent))),
        shift_(kFloatMantissa - floats.mantissa_bits),
        largest_(hn::Set(kIndex, floats.count << shift_)),
        most_drawn_(hn::Set(kIndex, (floats.count << shift_) + (1 << shift_) - 1)) {}

  HWY_INLINE Vector<Index> operator()(Vector<float> x, Vector<std::uint32_t> word) const {
    const Vector<float> magnitude = hn::Abs(x);
    const Vector<float> place = hn::Max(hn::Add(magnitude, magnitude), hn::Add(magnitude, normal_));
    const Vector<Index> fixed = hn::Min(hn::Sub(hn::BitCast(kIndex, place), hn::BitCast(kIndex, normal_)), largest_);
    const Vector<Index> sign = hn::BroadcastSignBit(hn::BitCast(kIndex, x));
    const Vector<Index> drawn = hn::BitCast(kIndex, hn::ShiftRightSame(word, 32 - shift_));
    return hn::ShiftRightSame(hn::Add(hn::Sub(hn::Xor(fixed, sign), sign), hn::Sub(most_drawn_, drawn)), shift_);
  }

 private:

  Vector<float> normal_;
  int shift_;
  Vector<Index> largest_;
  Vector<Index> most_drawn_;  // and where fixed point begins
};

void assign_floats_randomly(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<const std::uint32_t> words,
                            std::span<std::byte> packed) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    pack_codes<constant()>(AssigningFloatsRandomly(floats), packed, values.size(), values, words);
  });
}

void assign_floats(std::span<const float> values, const FewBitFloats& floats, int bits, std::span<std::byte> packed) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    pack_codes<constant()>(AssigningFloats(floats), packed, values.size(), values);
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
