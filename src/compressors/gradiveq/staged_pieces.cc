#include "compressors/gradiveq/staged_pieces.h"

#include <algorithm>
#include <limits>
#include <memory>

namespace thinwire {
namespace {

// copy(place in rows, place in groups, length) for each group's part of each row.
template <class Copy>
void for_each_part(std::size_t coefficients, std::size_t dims, std::size_t group, const Copy& copy) {
  const std::size_t columns = coefficients / dims;
  for (std::size_t begin = 0; begin < columns; begin += group) {
    const std::size_t length = std::min(group, columns - begin);
    for (std::size_t c = 0; c < dims; ++c) copy(c * columns + begin, begin * dims + c * length, length);
  }
}

}  // namespace

void rows_to_groups(std::span<const float> rows, std::size_t dims, std::size_t group, std::span<float> groups) {
  for_each_part(rows.size(), dims, group, [&](std::size_t row, std::size_t place, std::size_t length) {
    std::copy_n(rows.data() + row, length, groups.data() + place);
  });
}

void groups_to_rows(std::span<const float> groups, std::size_t dims, std::size_t group, std::span<float> rows) {
  for_each_part(groups.size(), dims, group, [&](std::size_t row, std::size_t place, std::size_t length) {
    std::copy_n(groups.data() + place, length, rows.data() + row);
  });
}

void write_staged(const StagedCoefficients& staged, int world_size, std::span<Piece> to) {
  const auto part = [](std::span<float> all, std::size_t first, std::size_t count) {
    return all.empty() ? all : all.subspan(first, count);
  };
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t first = i * kChunkElements, count = std::min<std::size_t>(kChunkElements, staged.coefficients.size() - first);
    Piece& piece = *std::construct_at(&to[i]);
    piece.parameter = staged.piece.parameter;
    piece.definition = staged.piece.definition;
    piece.step = staged.piece.step;
    piece.first = staged.first + first;
    piece.offset = staged.begin + first;
    piece.memory = staged.memory;
    piece.owner = static_cast<std::uint32_t>((staged.piece.owner + i) % static_cast<std::size_t>(world_size));
    piece.random = staged.piece.random.from(staged.drawn + first);
    piece.gradient = staged.coefficients.subspan(first, count);
    piece.residual = piece.next_residual = part(staged.lost, first, count);
  }
}

Work staged_work(std::span<const Piece> pieces, std::uint64_t elements, bool feedback) {
  Work work;
  work.pieces = pieces;
  work.elements = elements;
  work.feedback = feedback;
  work.largest_mean = std::numeric_limits<float>::max();
  work.is_stage = true;
  return work;
}

}  // namespace thinwire
