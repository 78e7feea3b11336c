// Passes over matrices most of whose rows are zero, and over sketches. Same bits on every SIMD target and for any number of
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire::kernels {

// Marks the rows of `row` elements (the last one perhaps shorter) that have any value but zero: bit r % 32 of word r / 32,
// one word for 32 rows, all written. Zeros lose their sign in rows that have nothing else. Returns whether every value is
// finite; NaN is not zero.
bool mark_rows(std::span<float> values, std::size_t row, std::span<std::uint32_t> marks);

// target <- target + factor * source, element by element.
void add_scaled(std::span<float> target, std::span<const float> source, float factor);
// target <- scale * gradient + residual: what is to be sent with error feedback.
void add_to_residual(std::span<const float> gradient, float scale, std::span<const float> residual, std::span<float> target);

// A count sketch whose hashes place groups of 16 neighbouring values, so that whole vectors move: group g goes to cell
// bucket_of(hash(seed, g), cells), and bit i of the hash decides the sign of its i-th value. Values of one group never meet.
inline constexpr std::size_t kSketchGroup = 16;
// The number of groups of so many values, the last one perhaps not full.
constexpr std::size_t sketch_groups(std::size_t values) { return (values + kSketchGroup - 1) / kSketchGroup; }

// Adds all groups whose cell is in [first_cell, last_cell) to the table, which has kSketchGroup floats a cell. Threads share a
// table by ranges of cells: every cell adds its groups in order.
void add_to_sketch(std::span<const float> values, std::uint64_t seed, std::uint32_t cells, std::uint32_t first_cell,
                   std::uint32_t last_cell, std::span<float> table);

// values <- factor * (what the sketch estimates of values), from group `first_group` on. tables: one, three or five of equal
// size, each with a seed; of several the median counts.
void estimate_from_sketch(std::span<const float> tables, std::span<const std::uint64_t> seeds, std::uint32_t cells,
                          std::uint64_t first_group, float factor, std::span<float> values);

}  // namespace thinwire::kernels
