// Count sketches of the rows that any worker uses: S2's mode=sketch, as published but for four things.
//
// After the bitmaps are united, the N entries of U's rows are packed and hashed into `tables` tables (1, 3 or 5; the published
// system has 1) that hold `ratio` N entries altogether; the tables are summed; an entry is estimated by the median of what the
// tables say of it. 32 (header + words) + 32 * 16 * cells * tables bits, cells = ceil(ratio * ceil(N / 16) / tables) of 16
// entries; two rounds.
// - Groups of 16 neighbouring entries are hashed together, which changes no expectation: see kernels/rows.h.
// - Hashes are a random permutation's, so that each cell of a table has k = floor or ceil of (N/16) / cells groups. With as many
//   cells as groups nothing would be lost; independent hashes would lose as much as g has.
// - The estimate is *shrunk*. Its error is w times what it shares its cell with on average, w = k - 1 for one table, at most 3/2
//   and 5/3 of that for three and five (at least half of the tables are off by as much as the median). Where w is more than 1
//   error feedback diverges. Times 1/(1+w) it is |g|^2 w/(1+w) at most: a contraction.
// - Where a table would not be shorter than the rows, these are sent.
// The residual is value minus mean, for each row of U.
#pragma once

#include "compressors/s2/united_rows.h"
#include "kernels/rows.h"

namespace thinwire {

struct Sketching {
  double ratio = 0.25;
  int tables = 1;
  bool shrink = true;
};

// By how much estimates are multiplied; groups: what was hashed into `cells` of each table, which are no more.
kernels::SketchFactors sketch_factors(const Sketching& sketching, std::uint64_t groups, std::uint64_t cells);

// The pieces have an S2Memory.
Exchange sketch_united_rows(const RowSpace& space, const Union& united, const Sketching& sketching, Work& work, Context& context);

}  // namespace thinwire
