// Ways to average sparse gradients that S2 is compared to, each as it was published. (OmniReduce is S2's mode=split on blocks.)
#pragma once

#include "compressors/shared/compressor.h"

namespace thinwire {

// What PyTorch's backends do to sum sparse tensors: gather how many rows each worker has, then their numbers as int64 and the
// rows themselves, all padded to the longest. Three rounds; a worker sends (W-1) (64 + (64 + 32 m) k) bits.
class Coordinates : public Compressor {
 public:
  static constexpr std::uint8_t kWireId = 33;

  // block: 0 for rows of the first dimension, else entries of a row.
  explicit Coordinates(std::uint64_t block) : block_(block) {}
  Exchange exchange(Work& work, Context& context) const override;
  Unit unit() const override { return Unit::kRow; }

 private:
  std::uint64_t block_;
};

// SparCML's split and all-gather of streams of (index, value), 64 bits an entry that is not zero. Owners have stripes of 1,024
// entries in turns, and not one range each, since shards are padded to the longest. What would be longer than 32 bits for
// every entry is sent dense: shards on their way to the owners (if the longest is, all are), and each owner's sums. Four
// rounds: counts, shards, lengths of sums, sums.
class SparCml : public Compressor {
 public:
  static constexpr std::uint8_t kWireId = 35;

  Exchange exchange(Work& work, Context& context) const override;
  Unit unit() const override { return Unit::kRow; }
};

}  // namespace thinwire
