// Which values of a span are the largest. The same places on every SIMD target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::kernels {

// So many values have places of 16 bits, and are counted in 16 bits.
inline constexpr std::size_t kMostSelected = 65535;

// Room that is wanted for so many values: places are written some at a time, perhaps past the last one.
constexpr std::size_t selecting_room(std::size_t values) { return values + 4; }

// places <- where the places.size() largest magnitudes are, ascending; of equal magnitudes those at the lowest places. Magnitudes
// are compared as bits: infinity is larger than what is finite, and NaN than infinity.
// Pre: places.size() <= values.size() <= kMostSelected; room has selecting_room(values.size()) places.
void select_largest(std::span<const float> values, std::span<std::uint16_t> places, std::span<std::uint16_t> room);

// The places of magnitudes that are not below `least`, ascending: they come first in room, and their number is returned.
// Pre: least >= 0; values.size() <= kMostSelected; room has selecting_room(values.size()) places.
std::size_t select_from(std::span<const float> values, float least, std::span<std::uint16_t> room);

}  // namespace thinwire::kernels
