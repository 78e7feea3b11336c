// bf16 and fp16: values are divided by the world size, rounded to 16 bits and summed by all-reduce. One round, 16 bits an
// element, one pass each way. Dividing first keeps fp16's sum from overflowing; a single value beyond 65504 times the world
// size becomes infinite. With feedback 16 bits a message more tell whether it is finite, and 16 a chunk whether any worker
// used it. The sum is rounded by the engine at every addition, which no residual sees. Without feedback means are written before the
// commit point: if a peer is lost in a later message of the bucket, gradients are lost too.
#pragma once

#include "compressors/shared/compressor.h"

namespace thinwire {

class Half : public Compressor {
 public:
  // `type`: kBfloat16 or kFloat16.
  explicit Half(ElementType type);
  Exchange exchange(Work& work, Context& context) const override;

 private:
  struct Format;
  Exchange exchange_plain(Work& work, Context& context) const;
  bool means_fit(std::span<const std::uint16_t> means, const Work& work, Context& context) const;

  ElementType type_;
  const Format* format_;
};

}  // namespace thinwire
