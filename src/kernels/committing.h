// The last step of error feedback: the mean and the new residual take their places.
#pragma once

#include <cstdint>
#include <span>

namespace thinwire::kernels {

// stored <- factor * mean; residual <- left. `stored` may be the memory of `mean`, and `residual` that of `left`. Where there is
// no residual, both spans are empty.
void commit(std::span<const float> mean, float factor, std::span<const float> left, std::span<float> stored,
            std::span<float> residual);

// The same past the caches: where so much is written that none of it is in them when it is read, memory is not read first. Other memory
// than that of `mean`; `residual` may be that of `left`, and is then left alone.
void commit_past_caches(std::span<const float> mean, float factor, std::span<const float> left, std::span<float> stored,
                        std::span<float> residual);

// stored <- factor * mean, rounded to nearest even as to_bf16() and to_fp16() do; residual <- left + (mean - stored / factor), so
// that rounding loses nothing. Pre: factor is not 0. A mean that `stored` cannot hold leaves an infinite residual: look first.
void commit_bf16(std::span<const float> mean, float factor, std::span<const float> left, std::span<std::uint16_t> stored,
                 std::span<float> residual);
void commit_fp16(std::span<const float> mean, float factor, std::span<const float> left, std::span<std::uint16_t> stored,
                 std::span<float> residual);

}  // namespace thinwire::kernels
