// Gradients of every element type, as the float32 that compressors work on.
#pragma once

#include <cstdint>
#include <span>

#include "core/scratch.h"
#include "core/work.h"
#include "thinwire/reducer.h"

namespace thinwire {

// Elements [first, first + values.size()) of the gradient, as floats, and back.
void load(const ParameterGradient& gradient, std::uint64_t first, std::span<float> values);
void store(std::span<const float> values, const ParameterGradient& gradient, std::uint64_t first);
void fill(const ParameterGradient& gradient, float value);

// Whether [first, first + elements) is finite; `buffer` holds a chunk of the grid.
bool is_finite(const ParameterGradient& gradient, std::uint64_t first, std::uint64_t elements, std::span<float> buffer);

// The gradient's own memory where it is float32, else scratch memory into which it can be loaded.
std::span<float> room_for_floats(const ParameterGradient& gradient, std::uint64_t first, std::uint64_t elements,
                                 Scratch& scratch);

}  // namespace thinwire
