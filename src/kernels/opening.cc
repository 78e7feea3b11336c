#include "kernels/opening.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/opening.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/formats-inl.h"
#include "kernels/opening-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

template <class Format>
Opened open_as(std::span<const typename Format::Element> gradient, float scale, std::span<const float> residual,
               std::span<float> values) {
  Opening<Format> opening(scale);
  open_groups(opening, gradient, residual, values);
  return opening.total();
}

// Dispatch tables want functions, not templates.
Opened open(std::span<const float> gradient, float scale, std::span<const float> residual, std::span<float> values) {
  return open_as<Fp32>(gradient, scale, residual, values);
}
Opened open_bf16(std::span<const Half> gradient, float scale, std::span<const float> residual, std::span<float> values) {
  return open_as<Bf16>(gradient, scale, residual, values);
}
Opened open_fp16(std::span<const Half> gradient, float scale, std::span<const float> residual, std::span<float> values) {
  return open_as<Fp16>(gradient, scale, residual, values);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(open);
HWY_EXPORT(open_bf16);
HWY_EXPORT(open_fp16);

Opened open(std::span<const float> gradient, float scale, std::span<const float> residual, std::span<float> values) {
  return HWY_DYNAMIC_DISPATCH(open)(gradient, scale, residual, values);
}
Opened open_bf16(std::span<const std::uint16_t> gradient, float scale, std::span<const float> residual, std::span<float> values) {
  return HWY_DYNAMIC_DISPATCH(open_bf16)(gradient, scale, residual, values);
}
Opened open_fp16(std::span<const std::uint16_t> gradient, float scale, std::span<const float> residual, std::span<float> values) {
  return HWY_DYNAMIC_DISPATCH(open_fp16)(gradient, scale, residual, values);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
