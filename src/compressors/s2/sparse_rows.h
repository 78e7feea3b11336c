// A message of parameters most of whose rows are zero: how its rows are numbered, sets of them, and packing.
//
// Every piece is a whole parameter. Its rows are those of its first dimension, or, with a block length, so many neighbouring
// elements (the last row perhaps shorter). Row r of a piece is bit r % 32 of a word; a word holds rows of one piece only, so
// that pieces, and blocks of words, can be worked on side by side.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "compressors/shared/head.h"
#include "core/context.h"
#include "core/scratch.h"
#include "core/work.h"

namespace thinwire {

// Elements of a row of a parameter; block: 0 for rows of the first dimension. At least 1.
std::uint64_t row_elements(const Parameter& parameter, std::uint64_t block);

// A piece's rows.
struct SparsePart {
  const Piece* piece = nullptr;
  std::uint64_t row = 1;       // elements of a row
  std::uint64_t rows = 0;
  std::uint64_t first_word = 0;
  std::uint64_t words = 0;

  std::uint64_t elements() const { return piece->elements(); }
  std::uint64_t length(std::uint64_t r) const { return std::min(row, elements() - r * row); }
  std::uint64_t word(std::uint64_t r) const { return first_word + r / 32; }
  // Row r of something as long as the piece; of nothing if that is empty.
  template <class T>
  std::span<T> row_of(std::span<T> whole, std::uint64_t r) const {
    return whole.empty() ? whole : whole.subspan(r * row, length(r));
  }
  GradientSpan gradient_of(std::uint64_t r) const { return piece->gradient.part(r * row, length(r)); }
};

// The rows of all pieces of a message.
class RowSpace {
 public:
  // `work` must outlive it.
  RowSpace(const Work& work, std::uint64_t block, Scratch& scratch);

  std::span<const SparsePart> parts() const { return parts_; }
  std::uint64_t words() const { return words_; }
  std::uint64_t rows() const { return rows_; }
  std::uint64_t elements() const { return elements_; }

  // Words of one piece, about a chunk's elements: what one thread takes at a time.
  struct Block {
    std::uint32_t part;
    std::uint64_t first_word;
    std::uint64_t words;
  };
  std::span<const Block> blocks() const { return blocks_; }
  // The first element in its piece of a block, and how many it has.
  std::uint64_t first_element(const Block& block) const;
  std::uint64_t elements(const Block& block) const;
  // For each block, whether a row without values holds zeros with a sign, which are no mean: mark_used_rows() says so.
  std::span<std::uint8_t> signed_zeros() const { return signed_zeros_; }

  // Throws PayloadError if a word has a bit for a row that does not exist.
  void check(std::span<const std::uint32_t> words) const;

 private:
  std::span<SparsePart> parts_;
  std::span<Block> blocks_;
  std::span<std::uint8_t> signed_zeros_;
  std::uint64_t words_ = 0;
  std::uint64_t rows_ = 0;
  std::uint64_t elements_ = 0;
};

// A set of rows, and where each of them is when all are packed one behind the other.
class RowSet {
 public:
  RowSet() = default;
  // words: of a RowSpace; they must not change any more.
  RowSet(const RowSpace& space, std::span<const std::uint32_t> words, Scratch& scratch);

  std::span<const std::uint32_t> words() const { return words_; }
  std::uint64_t rows() const { return rows_; }
  std::uint64_t elements() const { return begins_.empty() ? 0 : begins_.back(); }
  // Where the rows of word `w` begin in the packed form.
  std::uint64_t begin(std::uint64_t w) const { return begins_[w]; }
  // The packed rows of one piece.
  template <class T>
  std::span<T> part(std::span<T> packed, const SparsePart& of) const {
    return packed.subspan(begins_[of.first_word], begins_[of.first_word + of.words] - begins_[of.first_word]);
  }
  std::uint64_t rows_of(const SparsePart& of) const;
  // Whether row r of a piece is in the set, and where it then begins in the packed form.
  bool has(const SparsePart& part, std::uint64_t r) const { return (words_[part.word(r)] >> (r % 32) & 1) != 0; }
  std::uint64_t begin(const SparsePart& part, std::uint64_t r) const {
    const std::uint32_t before = words_[part.word(r)] & ((std::uint32_t{1} << (r % 32)) - 1);
    return begins_[part.word(r)] + static_cast<std::uint64_t>(std::popcount(before)) * part.row;
  }

 private:
  std::span<const std::uint32_t> words_;
  std::span<std::uint64_t> begins_;
  std::uint64_t rows_ = 0;
};

// Calls body(part, row in the piece, packed begin) for the rows of word `w`.
template <class Body>
void for_each_row_of_word(const SparsePart& part, const RowSet& set, std::uint64_t w, const Body& body) {
  std::uint64_t begin = set.begin(w);
  for (std::uint32_t left = set.words()[w]; left != 0; left &= left - 1) {
    const std::uint64_t r = 32 * (w - part.first_word) + static_cast<std::uint64_t>(std::countr_zero(left));
    body(part, r, begin);
    begin += part.length(r);
  }
}

// The same for all rows, by threads.
template <class Body>
void for_each_row(const RowSpace& space, const RowSet& set, Context& context, const Body& body) {
  context.threads().for_each(space.blocks().size(), set.elements(), [&](std::size_t b, std::size_t) {
    const RowSpace::Block& block = space.blocks()[b];
    for (std::uint64_t w = block.first_word; w < block.first_word + block.words; ++w)
      for_each_row_of_word(space.parts()[block.part], set, w, body);
  });
}

// Marks the rows in which this worker's gradient has anything, and notes in `head` whether all of it is finite.
void mark_used_rows(const RowSpace& space, Context& context, std::span<std::uint32_t> words, Head& head);
// The set of them.
RowSet own_rows(const RowSpace& space, Context& context, Head& head);

// What this worker has to send of the rows: gradient, or gradient plus residual.
void pack_values(const RowSpace& space, const RowSet& set, const Work& work, Context& context, std::span<float> packed);

// To be called where a message was carried without loss and Work::measured asks for its error; packed: what was sent.
void measure_lossless(const RowSpace& space, const RowSet& set, Work& work, std::span<const float> packed);

// --- past the commit point

// First of all: rows that this worker has not used have a mean of 0, and all residuals stay as they are. Rows that any worker has
// used are to be written afterwards.
void begin_commit(const RowSpace& space, Context& context);

// Writes a row's mean. Its next residual holds already what is left of it, if there is one.
void commit_row(const SparsePart& part, std::uint64_t r, const Work& work, std::span<const float> mean);

// Sums over all workers become means, of the rows in `set`. Of those in `sent` this worker has sent all, so that nothing is left.
void commit_sums(const RowSpace& space, const RowSet& set, const RowSet& sent, const Work& work, Context& context,
                 std::span<float> sums);

}  // namespace thinwire
