// bf16 and fp16: values are divided by the world size, rounded to 16 bits and summed by all-reduce. One round, 16 bits an
// element, one pass each way. Dividing first keeps fp16's sum from overflowing; a single value beyond 65504 times the world
// size becomes infinite. With feedback 16 bits a message more tell whether it is finite, and 16 a chunk whether any worker
// used it. The sum is rounded by the engine at every addition, which no residual sees. Without feedback means are written before the
// commit point: if a peer is lost in a later message of the bucket, gradients are lost too.
// Where owners keep means they travel by float_codec.h.
#pragma once

#include "compressors/quantizers/float_codec.h"
#include "compressors/shared/compressor.h"

namespace thinwire {

class Half : public Compressor {
 public:
  // `type`: kBfloat16 or kFloat16.
  Half(std::uint8_t wire_id, ElementType type);
  Exchange exchange(Work& work, Context& context) const override;
  bool serves_owners() const override { return true; }

 private:
  struct Format;
  Exchange exchange_plain(Work& work, Context& context) const;
  bool means_fit(std::span<const std::uint16_t> means, const Work& work, Context& context) const;

  ElementType type_;
  FloatCodec to_owners_;
  const Format* format_;
};

}  // namespace thinwire
