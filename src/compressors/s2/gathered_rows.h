// Rows that every worker sends for itself, packed: for few workers, or rows of which each worker has its own.
//
//   gather: every worker's rows go to every worker, who adds them up in rank order. Two rounds (sizes, payloads padded to the
//           longest); a worker sends (W-1) (8 + header + support + 32 k m bits), k the most rows that a worker has.
//   split:  every worker says which rows it has; the u-th row of the union belongs to worker u mod W, to whom all send theirs,
//           who adds them up in rank order and sends the sums to all. Four rounds (sizes, supports, rows, sums); a worker
//           sends (W-1)/W 32 (k + |U|) m bits, the supports and the padding of shards to the longest apart.
// Both lossless. Supports are bitmaps or gaps, whichever is shorter (sparse_support.h).
#pragma once

#include "compressors/s2/sparse_rows.h"
#include "core/exchange.h"

namespace thinwire {

// What an exchange of this kind learns for the next step: see S2Memory::Seen.
struct RowsSeen {
  std::uint64_t any_elements = 0;
  std::uint64_t most_elements = 0;
};

Exchange gather_rows(const RowSpace& space, Work& work, Context& context, RowsSeen& seen);
Exchange split_rows(const RowSpace& space, Work& work, Context& context, RowsSeen& seen);

// What strategies that bring every worker's rows have in common: the rows that some worker has,
RowSet union_of(const RowSpace& space, std::span<const RowSet> sets, Scratch& scratch);
// and the sums of values[rank], the packed rows of sets[rank], in rank order, packed as `all` is.
void add_rows(const RowSpace& space, std::span<const RowSet> sets, std::span<const std::span<const float>> values, const RowSet& all,
              Context& context, std::span<float> sums);

}  // namespace thinwire
