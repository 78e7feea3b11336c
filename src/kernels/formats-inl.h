// Formats that elements have in memory: float32, bf16 and fp16. load_as() and store_as() are between them and vectors of
// floats; storing rounds to nearest even. Included once a target.
#if defined(THINWIRE_KERNELS_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_FORMATS_INL_H_
#undef THINWIRE_KERNELS_FORMATS_INL_H_
#else
#define THINWIRE_KERNELS_FORMATS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

using Half = std::uint16_t;
using Bits = std::uint32_t;
constexpr Tag<Bits> kBits{};
constexpr hn::Rebind<Half, Tag<float>> kHalf{};

HWY_INLINE Vector<Bits> bits_of(Vector<float> x) { return hn::BitCast(kBits, x); }
HWY_INLINE Vector<float> float_of(Vector<Bits> bits) { return hn::BitCast(kFloat, bits); }
HWY_INLINE Vector<Bits> all(Bits bits) { return hn::Set(kBits, bits); }

struct Fp32 {
  using Element = float;
};

// The 16-bit formats' encode() and decode() are between floats and halves in the low parts of 32-bit lanes. Highway's own
// demotions are of no use here: they truncate on some targets and round on others.
struct Bf16 {
  using Element = Half;
  static HWY_INLINE Vector<Bits> encode(Vector<float> x) {
    const Vector<Bits> bits = bits_of(x);
    const Vector<Bits> odd = hn::And(hn::ShiftRight<16>(bits), all(1));
    const Vector<Bits> rounded = hn::Add(hn::Add(bits, all(0x7FFF)), odd);
    const auto nan = hn::RebindMask(kBits, hn::IsNaN(x));  // rounding could carry it into the sign
    return hn::ShiftRight<16>(hn::IfThenElse(nan, hn::Or(bits, all(0x400000)), rounded));
  }
  static HWY_INLINE Vector<float> decode(Vector<Bits> half) { return float_of(hn::ShiftLeft<16>(half)); }
};

// Integer arithmetic on halves and floats, after F. Giesen's "half to float done quick". Adding or subtracting a float
// whose last place is the smallest fp16 denormal makes the float unit round, or normalise, denormals.
struct PortableFp16 {
  using Element = Half;
  static constexpr int kShift = 23 - 10;                     // mantissa bits of float beyond fp16's
  static constexpr Bits kRebias = (127 - 15) << 23;          // difference of exponent biases
  static constexpr Bits kInfinity = 0xFF << 23;
  static constexpr Bits kTooLarge = kRebias + (31 << 23);    // 2^16: infinity when rounded
  static constexpr Bits kNormal = kRebias + (1 << 23);       // 2^-14: the smallest normal fp16
  static constexpr Bits kDenormalMagic = kNormal + (kShift << 23);  // 2^-1: its last place is 2^-24

  static HWY_INLINE Vector<Bits> encode(Vector<float> x) {
    const Vector<Bits> bits = bits_of(x);
    const Vector<Bits> magnitude = hn::And(bits, all(0x7FFFFFFF));
    const Vector<Bits> sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));

    const Vector<Bits> odd = hn::And(hn::ShiftRight<kShift>(magnitude), all(1));
    const Vector<Bits> rebiased = hn::Sub(hn::Add(magnitude, all((1 << (kShift - 1)) - 1)), all(kRebias));
    const Vector<Bits> normal = hn::ShiftRight<kShift>(hn::Add(rebiased, odd));

    const Vector<float> shifted = hn::Add(float_of(magnitude), float_of(all(kDenormalMagic)));
    const Vector<Bits> denormal = hn::Sub(bits_of(shifted), all(kDenormalMagic));

    const Vector<Bits> not_finite = hn::IfThenElse(hn::Gt(magnitude, all(kInfinity)), all(0x7E00), all(0x7C00));
    const Vector<Bits> finite = hn::IfThenElse(hn::Lt(magnitude, all(kNormal)), denormal, normal);
    return hn::Or(sign, hn::IfThenElse(hn::Lt(magnitude, all(kTooLarge)), finite, not_finite));
  }

  static HWY_INLINE Vector<float> decode(Vector<Bits> half) {
    const Vector<Bits> magnitude = hn::ShiftLeft<kShift>(hn::And(half, all(0x7FFF)));
    const Vector<Bits> sign = hn::ShiftLeft<16>(hn::And(half, all(0x8000)));

    const Vector<Bits> normal = hn::Add(magnitude, all(kRebias));
    const Vector<Bits> not_finite = hn::Or(magnitude, all(kInfinity));
    const Vector<float> shifted = float_of(hn::Add(magnitude, all(kNormal)));
    const Vector<Bits> denormal = bits_of(hn::Sub(shifted, float_of(all(kNormal))));

    const auto is_denormal = hn::Lt(magnitude, all(1 << 23));
    const auto is_finite = hn::Lt(magnitude, all(31 << 23));
    const Vector<Bits> finite = hn::IfThenElse(is_denormal, denormal, normal);
    return float_of(hn::Or(sign, hn::IfThenElse(is_finite, finite, not_finite)));
  }
};

// Processors with AVX2 convert by instruction, and round to nearest even whatever the rounding mode.
struct NativeFp16 {
  using Element = Half;
  static constexpr hn::Rebind<hwy::float16_t, Tag<float>> kNative{};
  static HWY_INLINE Vector<Bits> encode(Vector<float> x) {
    return hn::PromoteTo(kBits, hn::BitCast(kHalf, hn::DemoteTo(kNative, x)));
  }
  static HWY_INLINE Vector<float> decode(Vector<Bits> half) {
    return hn::PromoteTo(kFloat, hn::BitCast(kNative, hn::TruncateTo(kHalf, half)));
  }
};

using Fp16 = std::conditional_t<HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2, NativeFp16, PortableFp16>;

// The i-th vector of a group.
template <class Format>
HWY_INLINE Vector<float> load_as(const typename Format::Element* group, std::size_t i) {
  return Format::decode(hn::PromoteTo(kBits, hn::LoadU(kHalf, group + i * kWidth<float>)));
}
template <>
HWY_INLINE Vector<float> load_as<Fp32>(const float* group, std::size_t i) {
  return load(group, i);
}
template <class Format>
HWY_INLINE void store_as(Vector<float> x, typename Format::Element* group, std::size_t i) {
  hn::StoreU(hn::TruncateTo(kHalf, Format::encode(x)), kHalf, group + i * kWidth<float>);
}
template <>
HWY_INLINE void store_as<Fp32>(Vector<float> x, float* group, std::size_t i) {
  store(x, group, i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_FORMATS_INL_H_
