// Rows that any worker uses, packed: the exchanges of S2 that begin by uniting bitmaps.
//
// First round: one bit a row, united, behind a header. Then everybody knows the union U.
//   exact:  the rows of U are packed and summed. Lossless; two rounds; 32 (header + words) + 32 |U| m bits.
//   a stage: the packed rows are what a further compressor carries. Residuals are kept row by row: rows in which no worker
//           has any gradient stay as they are, and cost nothing.
// Memory passes: one over the gradient to find its rows, then only over the rows of U.
#pragma once

#include "compressors/shared/compressor.h"
#include "compressors/s2/sparse_rows.h"

namespace thinwire {

// What a worker says before the bitmap. All of it is united.
struct UnionHeader {
  static constexpr std::uint64_t kWords = 5;
  // Word 0: the Head's. Words 1 to 4: bit size_class(elements) of the sender's own rows, so that
  // the highest bit tells the most that any worker has.
  static std::uint32_t size_class(std::uint64_t elements);
  // An upper bound of the elements of a class, at most a fifth above the least of them.
  static std::uint64_t most_of_class(std::uint32_t size_class);
};

// The first round's result.
struct Union {
  RowSet rows;                      // empty if any worker's values are not finite
  std::uint64_t most_elements = 0;  // that any worker has itself, at most a fifth too many
};

// Fills `result`, or context.any_non_finite.
Exchange unite_rows(const RowSpace& space, const Work& work, Context& context, Union& result);

// Sums the rows. Where the union is so dense that packing saves next to nothing, the whole message travels as "none" does, and
// Report::fell_back says so.
Exchange sum_united_rows(const RowSpace& space, const Union& united, Work& work, Context& context);

// Lets `carrier` average the packed rows. The pieces have an S2Memory, which holds the carrier's.
Exchange carry_united_rows(const RowSpace& space, const Union& united, const Compressor& carrier, Work& work, Context& context);

}  // namespace thinwire
