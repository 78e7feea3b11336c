// What opening does with groups of gradients and residuals. Included once a target.
#if defined(THINWIRE_KERNELS_OPENING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THINWIRE_KERNELS_OPENING_INL_H_
#undef THINWIRE_KERNELS_OPENING_INL_H_
#else
#define THINWIRE_KERNELS_OPENING_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/formats-inl.h"
#include "kernels/groups-inl.h"
#include "kernels/magnitudes-inl.h"
#include "kernels/opening.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

template <class Format>
class Opening {
 public:
  using Element = typename Format::Element;
  explicit Opening(float scale) : scale_(scale) {}

  HWY_INLINE void operator()(const Element* gradients, float* values) {
    for (std::size_t i = 0; i < kVectors<float>; ++i) store(count(i, scaled(gradients, i)), values, i);
  }
  HWY_INLINE void operator()(const Element* gradients, const float* residuals, float* values) {
    for (std::size_t i = 0; i < kVectors<float>; ++i)
      store(count(i, hn::Add(scaled(gradients, i), load(residuals, i))), values, i);
  }
  HWY_INLINE Opened total() const { return {.sum = sums_.total(), .gradient_nonzero = largest_gradient_.bits() != 0}; }

 private:
  HWY_INLINE Vector<float> scaled(const Element* gradients, std::size_t i) {
    const Vector<float> gradient = load_as<Format>(gradients, i);
    largest_gradient_.add(i, gradient);
    return hn::Mul(hn::Set(kFloat, scale_), gradient);
  }
  HWY_INLINE Vector<float> count(std::size_t i, Vector<float> sum) {
    sums_.add(i, sum);
    return sum;
  }

  float scale_;
  MagnitudeSums sums_;
  LargestMagnitude largest_gradient_;
};

// What is read ahead of gradients' bytes: a tenth sooner than with what other kernels read ahead.
constexpr std::uintptr_t kGradientsAhead = 6144;

template <class Format>
HWY_INLINE void open_groups(Opening<Format>& opening, std::span<const typename Format::Element> gradient, std::span<const float> residual,
                            std::span<float> values) {
  const Column<const typename Format::Element, kGradientsAhead> gradients(gradient);
  if (residual.empty())
    for_each_group(values.size(), opening, gradients, Column(values));
  else
    for_each_group(values.size(), opening, gradients, Column(residual), Column(values));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#endif  // THINWIRE_KERNELS_OPENING_INL_H_
