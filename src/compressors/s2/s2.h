// S2 Reducer: gradients most of whose rows are zero, through all-reduce.
//
// Source: "S2 Reducer: High-Performance Sparse Communication to Accelerate Distributed Deep Learning", arXiv 2110.02140;
// ICASSP 2022. Symbols: R rows of m entries, U the rows that any of W workers uses, k the most that one uses, T the sketch.
//
//   mode=exact   united bitmap, then the rows of U summed                     lossless, 2 rounds   united_rows.h
//   mode=gather  every worker's rows to every worker                          lossless, 2 rounds   gathered_rows.h
//   mode=split   rows to their owners, sums to all                            lossless, 4 rounds   gathered_rows.h
//   mode=auto    of these three the one that last step's rows make cheapest   lossless
//   mode=peel    rows hashed into a table that is read off again              lossless to rounding, 1 round   peeled_rows.h
//   mode=sketch  the published way, shrunk; error feedback                    contractive, 2 rounds   sketched_rows.h
//   mode=exact/SPEC  the rows of U, packed, carried by another compressor     what that is
//
// A row is one of the first dimension; with block=B so many neighbouring entries. A piece is a whole parameter. Why which mode
// is best where, and what differs from the paper: docs/s2.md.
#pragma once

#include <memory>
#include <string_view>

#include "compressors/shared/compressor.h"
#include "compressors/s2/gathered_rows.h"
#include "compressors/s2/sketched_rows.h"
#include "compressors/s2/united_rows.h"

namespace thinwire {

enum class S2Mode { kAuto, kExact, kGather, kPeel, kSketch, kSplit };

// `text`: "auto", "exact", "gather", "peel", "sketch" or "split".
S2Mode s2_mode_of(std::string_view text);

struct S2Options {
  S2Mode mode = S2Mode::kAuto;
  std::uint64_t block = 0;  // entries of a row; 0: a row of the first dimension
  Sketching sketching = {};
};

// What a mode is expected to cost on a link that is known.
double s2_seconds(S2Mode mode, const RowsSeen& seen, std::uint64_t rows, std::uint64_t elements, int world_size, const Link& link);

class S2 : public Compressor {
 public:
  static constexpr std::uint8_t kWireId = 32;

  // carrier: of mode=exact's rows; may be null. Throws ArgumentError for a carrier in another mode.
  S2(const S2Options& options, std::unique_ptr<const Compressor> carrier);

  Exchange exchange(Work& work, Context& context) const override;
  Unit unit() const override { return Unit::kRow; }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t chunk) const override;
  void plan_step(std::span<CompressorMemory*> memories) const override;
  bool chooses_by_link() const override { return options_.mode == S2Mode::kAuto || (carrier_ && carrier_->chooses_by_link()); }
  bool needs_feedback() const override { return options_.mode == S2Mode::kSketch; }

 private:
  S2Mode choose(const RowSpace& space, const Context& context) const;
  Exchange exchange_united(S2Mode mode, const RowSpace& space, Work& work, Context& context, RowsSeen& seen) const;

  S2Options options_;
  std::unique_ptr<const Compressor> carrier_;
};

}  // namespace thinwire
