// Bits taken out of a word at the places of a mask, and put back there. Included once a target.
#if defined(THINWIRE_KERNELS_BIT_DEPOSIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_BIT_DEPOSIT_INL_H_
#undef THINWIRE_KERNELS_BIT_DEPOSIT_INL_H_
#else
#define THINWIRE_KERNELS_BIT_DEPOSIT_INL_H_
#endif

#include <bit>
#include <cstdint>

#include "hwy/highway.h"
#if HWY_ARCH_X86_64
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_BMI2_FMA)
// The bits of word where mask is 1, side by side from the lowest place on.
HWY_INLINE std::uint64_t extract(std::uint64_t word, std::uint64_t mask) { return _pext_u64(word, mask); }
// The inverse: the lowest bits of word, each at the next place where mask is 1.
HWY_INLINE std::uint64_t deposit(std::uint64_t word, std::uint64_t mask) { return _pdep_u64(word, mask); }
#else
HWY_INLINE std::uint64_t extract(std::uint64_t word, std::uint64_t mask) {
  std::uint64_t side_by_side = 0;
  for (unsigned next = 0; mask != 0; mask &= mask - 1, ++next)
    side_by_side |= ((word >> std::countr_zero(mask)) & 1) << next;
  return side_by_side;
}
HWY_INLINE std::uint64_t deposit(std::uint64_t word, std::uint64_t mask) {
  std::uint64_t apart = 0;
  for (; mask != 0; mask &= mask - 1, word >>= 1)
    if (word & 1) apart |= mask & (~mask + 1);
  return apart;
}
#endif

HWY_INLINE unsigned count_ones(std::uint64_t word) { return static_cast<unsigned>(std::popcount(word)); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_BIT_DEPOSIT_INL_H_
