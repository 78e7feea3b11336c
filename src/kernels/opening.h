// The first step of error feedback: what is to be sent, of a gradient and the residual, both of which stay as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/statistics.h"

namespace thinwire::kernels {

// What one pass learns: the magnitudes of `values`, and whether the gradient had any value but zero. A non-finite gradient
// shows as `sum.finite == false`.
struct Opened {
  Magnitudes sum;
  bool gradient_nonzero = false;
};

// Values that are not opened yet: scale * gradient + residual, without an empty residual.
struct Unopened {
  std::span<const float> gradient;
  float scale = 1;
  std::span<const float> residual = {};

  Unopened part(std::size_t first, std::size_t count) const {
    return {gradient.subspan(first, count), scale, residual.empty() ? residual : residual.subspan(first, count)};
  }
};

// values <- scale * gradient + residual. Spans of equal length; `values` may be the memory of a span of floats that is read.
// Without a residual, an empty span, values <- scale * gradient: at scale 1 the bits of all that is not NaN.
Opened open(std::span<const float> gradient, float scale, std::span<const float> residual, std::span<float> values);
Opened open_bf16(std::span<const std::uint16_t> gradient, float scale, std::span<const float> residual, std::span<float> values);
Opened open_fp16(std::span<const std::uint16_t> gradient, float scale, std::span<const float> residual, std::span<float> values);

}  // namespace thinwire::kernels
