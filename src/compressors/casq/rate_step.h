// A chunk's step as it travels before its code, and room for its coder.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <type_traits>

namespace thinwire::casq {

// A step is a float32 of which the sign, 0, and all but 8 bits of the fraction are left out.
constexpr int kStepShift = 15;
using StepCode = std::uint16_t;
inline StepCode coded_step(float step) { return static_cast<StepCode>(std::bit_cast<std::uint32_t>(step) >> kStepShift); }
inline float step_of(StepCode code) { return std::bit_cast<float>(std::uint32_t{code} << kStepShift); }

// A ChunkEncoder or ChunkDecoder: both are large and need no construction to speak of.
template <class Coder>
Coder& coder_in(std::span<std::byte> room) {
  static_assert(std::is_trivially_destructible_v<Coder> && alignof(Coder) <= 64);
  return *new (room.data()) Coder;
}

}  // namespace thinwire::casq
