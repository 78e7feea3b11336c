// Passes over matrices most of whose rows are zero, and over sketches. Same bits on every SIMD target and for any number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::kernels {

// Marks the rows of `row` elements (the last one perhaps shorter) that have any value but zero: bit r % 32 of word r / 32,
// one word for 32 rows, all written. NaN is not zero.
struct Marked {
  bool finite = true;         // every value
  bool signed_zeros = false;  // some row that is not marked holds a zero with a sign
};
Marked mark_rows(std::span<const float> values, std::size_t row, std::span<std::uint32_t> marks);
// The same for 16-bit floats. infinity: its bits in their format.
Marked mark_rows(std::span<const std::uint16_t> values, std::uint16_t infinity, std::size_t row, std::span<std::uint32_t> marks);

// target <- target + factor * source, element by element.
void add_scaled(std::span<float> target, std::span<const float> source, float factor);

// A count sketch of groups of 16 neighbouring values, so that whole vectors move. Of G groups, number g goes to cell
// Permutation(seed, G)(g) mod cells, and bit i of hash(seed, g) decides the sign of its i-th value. So cells are as full as one
// another, but for one group: fewer meet than under hashes that know nothing of each other. Values of one group never meet.
inline constexpr std::size_t kSketchGroup = 16;
// The number of groups of so many values, the last one perhaps not full.
constexpr std::size_t sketch_groups(std::size_t values) { return (values + kSketchGroup - 1) / kSketchGroup; }

// Adds all groups whose cell is in [first_cell, last_cell) to the table, which has kSketchGroup floats a cell. Threads share a
// table by ranges of cells: every cell adds its groups in order.
void add_to_sketch(std::span<const float> values, std::uint64_t seed, std::uint32_t cells, std::uint32_t first_cell,
                   std::uint32_t last_cell, std::span<float> table);

// By how much estimates are multiplied: those from the first G mod cells cells, which have a group more, and those from others.
struct SketchFactors {
  float fuller = 1;
  float emptier = 1;
};

// values <- factor * (what the sketch of `groups` groups estimates of values), from group `first_group` on. tables: one, three or
// five of equal size, each with a seed; of several the median counts, and the factor is that of the first one's cell.
void estimate_from_sketch(std::span<const float> tables, std::span<const std::uint64_t> seeds, std::uint32_t cells, std::uint64_t groups,
                          std::uint64_t first_group, SketchFactors factors, std::span<float> values);

}  // namespace thinwire::kernels
