#include "compressors/s2/sparse_rows.h"

#include <algorithm>
#include <string>

#include "compressors/shared/message.h"
#include "core/divide.h"
#include "kernels/rows.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint64_t kBits = 32;  // rows of a word

std::uint64_t words_of_block(std::uint64_t row) { return std::max<std::uint64_t>(1, kChunkElements / (kBits * row)); }

kernels::Marked mark_rows(GradientSpan gradient, std::uint64_t row, std::span<std::uint32_t> words) {
  if (gradient.is_float()) return kernels::mark_rows(gradient.floats(), row, words);
  const std::span halves(reinterpret_cast<const std::uint16_t*>(gradient.bytes.data()), gradient.size());
  return kernels::mark_rows(halves, gradient.type == ElementType::kBfloat16 ? 0x7F80 : 0x7C00, row, words);
}

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
    const Piece& piece = work.pieces[p];
    const std::uint64_t row = row_elements(*piece.definition, block);
    const std::uint64_t rows = divided_up(piece.elements(), row);
    parts_[p] = {&piece, row, rows, words_, divided_up(rows, kBits)};
    words_ += parts_[p].words;
    rows_ += rows;
    blocks += divided_up(parts_[p].words, words_of_block(row));
  }
  blocks_ = scratch.take<Block>(blocks);
  signed_zeros_ = scratch.take<std::uint8_t>(blocks);
  std::ranges::fill(signed_zeros_, std::uint8_t{0});
  std::size_t next = 0;
  for (std::uint32_t p = 0; p < parts_.size(); ++p) {
    const std::uint64_t step = words_of_block(parts_[p].row);
    for (std::uint64_t word = 0; word < parts_[p].words; word += step)
      blocks_[next++] = {p, parts_[p].first_word + word, std::min(step, parts_[p].words - word)};
  }
}

std::uint64_t RowSpace::first_element(const Block& block) const {
  const SparsePart& part = parts_[block.part];
  return (block.first_word - part.first_word) * kBits * part.row;
}

std::uint64_t RowSpace::elements(const Block& block) const {
  const SparsePart& part = parts_[block.part];
  return std::min(block.words * kBits * part.row, part.elements() - first_element(block));
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

void mark_used_rows(const RowSpace& space, Context& context, std::span<std::uint32_t> words, Head& head) {
  context.threads().for_each(space.blocks().size(), space.elements(), [&](std::size_t b, std::size_t) {
    const RowSpace::Block& block = space.blocks()[b];
    const SparsePart& part = space.parts()[block.part];
    const GradientSpan gradient = part.piece->gradient.part(space.first_element(block), space.elements(block));
    const kernels::Marked marked = mark_rows(gradient, part.row, words.subspan(block.first_word, block.words));
    if (!marked.finite) head.note_not_finite();
    space.signed_zeros()[b] = marked.signed_zeros ? 1 : 0;
  });
}

RowSet own_rows(const RowSpace& space, Context& context, Head& head) {
  const auto words = context.scratch().take<std::uint32_t>(space.words());
  mark_used_rows(space, context, words, head);
  return {space, words, context.scratch()};
}

void pack_values(const RowSpace& space, const RowSet& set, const Work& work, Context& context, std::span<float> packed) {
  for_each_row(space, set, context, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
    const GradientSpan gradient = part.gradient_of(r);
    const auto target = packed.subspan(begin, gradient.size());
    const auto residual = part.row_of(part.piece->residual, r);
    if (gradient.is_float() && residual.empty() && work.gradient_scale == 1)
      std::ranges::copy(gradient.floats(), target.begin());
    else
      read_values(gradient, work.gradient_scale, residual, target);
  });
}

void measure_lossless(const RowSpace& space, const RowSet& set, Work& work, std::span<const float> packed) {
  if (!work.measured) return;
  for (std::size_t p = 0; p < space.parts().size(); ++p)
    work.report.energies[p] = kernels::squared_norm(set.part(packed, space.parts()[p]));
}

void begin_commit(const RowSpace& space, Context& context) {
  context.threads().for_each(space.blocks().size(), space.elements(), [&](std::size_t b, std::size_t) {
    const RowSpace::Block& block = space.blocks()[b];
    const Piece& piece = *space.parts()[block.part].piece;
    const std::uint64_t first = space.first_element(block), count = space.elements(block);
    if (space.signed_zeros()[b] != 0) std::ranges::fill(piece.gradient.part(first, count).bytes, std::byte{0});
    if (piece.next_residual.data() != piece.residual.data())
      std::ranges::copy(piece.residual.subspan(first, count), piece.next_residual.begin() + static_cast<std::ptrdiff_t>(first));
  });
}

void commit_row(const SparsePart& part, std::uint64_t r, const Work& work, std::span<const float> mean) {
  store_mean(mean, work.gradient_scale, part.gradient_of(r), part.row_of(part.piece->next_residual, r));
}

void commit_sums(const RowSpace& space, const RowSet& set, const RowSet& sent, const Work& work, Context& context,
                 std::span<float> sums) {
  const float weight = 1.0f / static_cast<float>(context.world_size());
  for_each_row(space, set, context, [&](const SparsePart& part, std::uint64_t r, std::uint64_t begin) {
    const auto mean = sums.subspan(begin, part.length(r));
    kernels::multiply(mean, weight);
    if (sent.has(part, r)) std::ranges::fill(part.row_of(part.piece->next_residual, r), 0.0f);
    commit_row(part, r, work, mean);
  });
}

}  // namespace thinwire
