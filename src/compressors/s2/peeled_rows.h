// S2's mode=peel: which rows there are, and their sums, in *one* round.
//
// Every row that a worker has is added, with a sign, to three cells of a table whose cells are rows (so hashing and peeling
// cost something for each row and not for each entry). Beside the table travels how many workers have each row: fields of
// ceil(log2(W+1)) bits, as many as fit into 24 bits, in a float, whose sums are exact. So all is one sum of floats. Whoever
// knows which rows are in the table reads them off one after another (peeling.h): exact up to float rounding, relative to
// the largest value of the chain that a row is taken from.
// The table's size must be known beforehand: 1.25 n + 6 sqrt(n) + 24 rows, n those of last step, the same on every worker; where
// that is no less than all rows, they travel as they are.
// Rows that cannot be read off (more than were expected, or bad luck): without feedback they are packed and summed in a
// second round; with feedback they are estimated from the cell in which the fewest are, o of them, shrunk by 1/(3o-2), which
// is a contraction whatever the rows' sizes (docs/s2.md), and the residual keeps what that misses.
// Bits: 32 (1 + sum over pieces of (ceil(R / fields) + m cells)).
#pragma once

#include "compressors/s2/sparse_rows.h"
#include "core/exchange.h"

namespace thinwire {

// Cells of the table for so many rows, in three equal parts.
std::uint64_t peeling_cells(double expected_rows);

// Bits of a field that counts workers, and fields in a float.
int count_bits(int world_size);
int counts_in_float(int world_size);

// The pieces have an S2Memory.
Exchange peel_rows(const RowSpace& space, Work& work, Context& context);

}  // namespace thinwire
