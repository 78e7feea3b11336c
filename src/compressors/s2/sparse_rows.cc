#include "compressors/s2/sparse_rows.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "core/divide.h"
#include "kernels/rows.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint64_t kBits = 32;  // rows of a word

std::uint64_t words_of_block(std::uint64_t row) { return std::max<std::uint64_t>(1, kChunkElements / (kBits * row)); }

}  // namespace

std::uint64_t row_elements(const Parameter& parameter, std::uint64_t block) {
  if (block > 0) return block;
  const std::uint64_t elements = parameter.elements();
  if (parameter.shape.empty() || elements == 0) return 1;
  return elements / static_cast<std::uint64_t>(parameter.shape.front());
}

RowSpace::RowSpace(const Work& work, std::uint64_t block, Scratch& scratch)
    : parts_(scratch.take<SparsePart>(work.pieces.size())), elements_(work.elements) {
  std::uint64_t blocks = 0;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    Piece& piece = work.pieces[p];
    const std::uint64_t row = row_elements(*piece.definition, block);
    const std::uint64_t rows = divided_up(piece.gradient.size(), row);
    parts_[p] = {&piece, row, rows, words_, divided_up(rows, kBits)};
    words_ += parts_[p].words;
    rows_ += rows;
    blocks += divided_up(parts_[p].words, words_of_block(row));
  }
  blocks_ = scratch.take<Block>(blocks);
  std::size_t next = 0;
  for (std::uint32_t p = 0; p < parts_.size(); ++p) {
    const std::uint64_t step = words_of_block(parts_[p].row);
    for (std::uint64_t word = 0; word < parts_[p].words; word += step)
      blocks_[next++] = {p, parts_[p].first_word + word, std::min(step, parts_[p].words - word)};
  }
}

void RowSpace::check(std::span<const std::uint32_t> words) const {
  for (const SparsePart& part : parts_) {
    if (part.rows % kBits == 0) continue;
    if (words[part.first_word + part.words - 1] >> (part.rows % kBits) != 0)
      throw PayloadError("a worker marks a row beyond the " + std::to_string(part.rows) + " of '" +
                         part.piece->definition->name + "'");
  }
}

RowSet::RowSet(const RowSpace& space, std::span<const std::uint32_t> words, Scratch& scratch)
    : words_(words), begins_(scratch.take<std::uint64_t>(space.words() + 1)) {
  std::uint64_t next = 0;
  for (const SparsePart& part : space.parts()) {
    for (std::uint64_t w = part.first_word; w < part.first_word + part.words; ++w) {
      begins_[w] = next;
      const auto marked = static_cast<std::uint64_t>(std::popcount(words_[w]));
      next += marked * part.row;
      rows_ += marked;
    }
    // The last row may be shorter.
    if (part.rows > 0 && (words_[part.first_word + part.words - 1] >> ((part.rows - 1) % kBits) & 1) != 0)
      next -= part.row - part.length(part.rows - 1);
  }
  begins_[space.words()] = next;
}

std::uint64_t RowSet::rows_of(const SparsePart& of) const {
  std::uint64_t rows = 0;
  for (const std::uint32_t word : words_.subspan(of.first_word, of.words)) rows += static_cast<std::uint64_t>(std::popcount(word));
  return rows;
}

bool mark_used_rows(const RowSpace& space, Context& context, std::span<std::uint32_t> words) {
  std::atomic<bool> finite = true;
  context.threads().for_each(space.blocks().size(), space.elements(), [&](std::size_t b, std::size_t) {
    const RowSpace::Block& block = space.blocks()[b];
    const SparsePart& part = space.parts()[block.part];
    const std::uint64_t first = (block.first_word - part.first_word) * kBits * part.row;
    const std::uint64_t count = std::min(block.words * kBits * part.row, part.elements() - first);
    if (!kernels::mark_rows(part.piece->gradient.subspan(first, count), part.row, words.subspan(block.first_word, block.words)))
      finite = false;
  });
  return finite;
}

void pack_values(const RowSpace& space, const RowSet& set, const Work& work, Context& context, std::span<float> packed) {
  for_each_row(space, set, context, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
    const Piece& piece = *part.piece;
    const auto target = packed.subspan(begin, part.length(r));
    if (piece.has_residual())
      kernels::add_to_residual(part.row_of(piece.gradient, r), work.gradient_scale, part.row_of(piece.residual, r), target);
    else
      std::ranges::copy(part.row_of(piece.gradient, r), target.begin());
  });
}

void commit_sums(const RowSpace& space, const RowSet& set, Context& context, std::span<const float> sums) {
  const float weight = 1.0f / static_cast<float>(context.world_size());
  for_each_row(space, set, context, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
    const std::span<float> mean = part.row_of(part.piece->mean(), r);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] = weight * sums[begin + i];
  });
}

void clear_residuals(const RowSpace& space, const RowSet& set, Context& context) {
  for_each_row(space, set, context, [](const SparsePart& part, std::uint64_t r, std::uint64_t) {
    if (part.piece->has_residual()) std::ranges::fill(part.row_of(part.piece->residual, r), 0.0f);
  });
}

void measure_lossless(const RowSpace& space, const RowSet& set, Work& work, std::span<const float> packed) {
  if (!work.measured) return;
  for (const SparsePart& part : space.parts())
    part.piece->energy = static_cast<float>(kernels::squared_norm(set.part(packed, part)));
  work.first_error = 0;
}

}  // namespace thinwire
