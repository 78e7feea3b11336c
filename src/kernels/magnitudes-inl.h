// Figures of values that pass by: what measure(), scan() and those kernels that do it on their way have in common. Included
// once a target.
#if defined(THINWIRE_KERNELS_MAGNITUDES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_MAGNITUDES_INL_H_
#undef THINWIRE_KERNELS_MAGNITUDES_INL_H_
#else
#define THINWIRE_KERNELS_MAGNITUDES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "hwy/highway.h"
#include "kernels/groups-inl.h"
#include "kernels/statistics.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int32_t kInfinityBits = 0x7F800000;

HWY_INLINE Vector<std::int32_t> magnitude_bits(Vector<float> x) {
  return hn::BitCast(Tag<std::int32_t>(), hn::Abs(x));
}

// The largest magnitude, kept as bits: magnitudes order like their bits, with infinity above all finite values and NaN
// above infinity, and an integer maximum treats NaN alike on every target.
class LargestMagnitude {
 public:
  HWY_INLINE void add(std::size_t i, Vector<float> x) { bits_[i] = hn::Max(bits_[i], magnitude_bits(x)); }
  HWY_INLINE std::int32_t bits() const {
    Vector<std::int32_t> largest = bits_[0];
    for (std::size_t i = 1; i < kVectors<std::int32_t>; ++i) largest = hn::Max(largest, bits_[i]);
    return hn::GetLane(hn::MaxOfLanes(Tag<std::int32_t>(), largest));
  }
  HWY_INLINE float value() const { return std::bit_cast<float>(bits()); }
  HWY_INLINE bool finite() const { return bits() < kInfinityBits; }

 private:
  Lanes<std::int32_t> bits_;
};

class MagnitudeSums {
 public:
  HWY_INLINE void add(std::size_t i, Vector<float> x) {
    largest_.add(i, x);
    abs_[i] = hn::Add(abs_[i], hn::Abs(x));
    squares_[i] = hn::Add(squares_[i], hn::Mul(x, x));
  }
  HWY_INLINE Magnitudes total() const {
    return {.largest = largest_.value(),
            .sum_abs = abs_.fold(std::plus<float>()),
            .sum_squares = squares_.fold(std::plus<float>()),
            .finite = largest_.finite()};
  }

 private:
  LargestMagnitude largest_;
  Lanes<float> abs_;
  Lanes<float> squares_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_MAGNITUDES_INL_H_
