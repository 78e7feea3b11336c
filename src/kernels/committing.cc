#include "kernels/committing.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/committing.cc"
#include "hwy/foreach_target.h"  // must come before the next four
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/formats-inl.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

template <class Format>
class Committing {
 public:
  using Element = typename Format::Element;
  explicit Committing(float factor) : factor_(factor) {}

  HWY_INLINE void operator()(const float* means, Element* stored) const {
    for (std::size_t i = 0; i < kVectors<float>; ++i) store_as<Format>(scaled(load(means, i)), stored, i);
  }
  HWY_INLINE void operator()(const float* means, const float* left, Element* stored, float* residuals) const {
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      const Vector<float> mean = load(means, i);
      store_as<Format>(scaled(mean), stored, i);
      store(hn::Add(load(left, i), lost(mean, stored, i)), residuals, i);
    }
  }

 private:
  HWY_INLINE Vector<float> scaled(Vector<float> mean) const { return hn::Mul(hn::Set(kFloat, factor_), mean); }
  HWY_INLINE Vector<float> lost(Vector<float> mean, const Element* stored, std::size_t i) const {
    return hn::Sub(mean, hn::Div(load_as<Format>(stored, i), hn::Set(kFloat, factor_)));
  }

  float factor_;
};

// Floats keep what multiplying loses, as they do without compression.
template <>
HWY_INLINE void Committing<Fp32>::operator()(const float* means, const float* left, float* stored, float* residuals) const {
  for (std::size_t i = 0; i < kVectors<float>; ++i) {
    store(scaled(load(means, i)), stored, i);
    store(load(left, i), residuals, i);
  }
}

template <class Format>
void commit_as(std::span<const float> mean, float factor, std::span<const float> left,
               std::span<typename Format::Element> stored, std::span<float> residual) {
  const Committing<Format> committing(factor);
  const bool in_place = std::is_same_v<Format, Fp32> && left.data() == residual.data();
  if (residual.empty() || in_place)
    for_each_group(mean.size(), committing, Column(mean), Column(stored));
  else
    for_each_group(mean.size(), committing, Column(mean), Column(left), Column(stored), Column(residual));
}

// to <- factor * from.
HWY_INLINE void stream_scaled(std::span<const float> from, float factor, std::span<float> to) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  const std::size_t beyond_line = reinterpret_cast<std::uintptr_t>(to.data()) / sizeof(float) % kLine;
  const std::size_t ahead = std::min(to.size(), (kLine - beyond_line) % kLine), lines = (to.size() - ahead) / kLine;
  const auto scale = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) to[i] = factor * from[i];
  };
  scale(0, ahead);
  for (std::size_t begin = ahead; begin < ahead + lines * kLine; begin += kLine) {
    prefetch_beyond<4096, 2>(from.data() + begin);
    for (std::size_t i = begin; i < begin + kLine; i += kWidth<float>)
      hn::Stream(hn::Mul(hn::Set(kFloat, factor), hn::LoadU(kFloat, from.data() + i)), kFloat, to.data() + i);
  }
  scale(ahead + lines * kLine, to.size());
}
void commit_past_caches(std::span<const float> mean, float factor, std::span<const float> left, std::span<float> stored,
                        std::span<float> residual) {
  stream_scaled(mean, factor, stored);
  if (left.data() != residual.data()) stream_scaled(left, 1, residual);
  hwy::FlushStream();
}

// Dispatch tables want functions, not templates.
void commit(std::span<const float> mean, float factor, std::span<const float> left, std::span<float> stored,
            std::span<float> residual) {
  commit_as<Fp32>(mean, factor, left, stored, residual);
}
void commit_bf16(std::span<const float> mean, float factor, std::span<const float> left, std::span<Half> stored,
                 std::span<float> residual) {
  commit_as<Bf16>(mean, factor, left, stored, residual);
}
void commit_fp16(std::span<const float> mean, float factor, std::span<const float> left, std::span<Half> stored,
                 std::span<float> residual) {
  commit_as<Fp16>(mean, factor, left, stored, residual);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(commit);
HWY_EXPORT(commit_past_caches);
HWY_EXPORT(commit_bf16);
HWY_EXPORT(commit_fp16);

void commit(std::span<const float> mean, float factor, std::span<const float> left, std::span<float> stored,
            std::span<float> residual) {
  HWY_DYNAMIC_DISPATCH(commit)(mean, factor, left, stored, residual);
}
void commit_past_caches(std::span<const float> mean, float factor, std::span<const float> left, std::span<float> stored,
                        std::span<float> residual) {
  HWY_DYNAMIC_DISPATCH(commit_past_caches)(mean, factor, left, stored, residual);
}
void commit_bf16(std::span<const float> mean, float factor, std::span<const float> left, std::span<std::uint16_t> stored,
                 std::span<float> residual) {
  HWY_DYNAMIC_DISPATCH(commit_bf16)(mean, factor, left, stored, residual);
}
void commit_fp16(std::span<const float> mean, float factor, std::span<const float> left, std::span<std::uint16_t> stored,
                 std::span<float> residual) {
  HWY_DYNAMIC_DISPATCH(commit_fp16)(mean, factor, left, stored, residual);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
