// No compression: float32 values are summed by all-reduce. One round, 32 bits an element; the reference.
//
// Where gradients lie one behind the other as float32, they are summed in place: if a peer is lost then, they are lost too, as with
// plain all-reduce. Where owners keep means they travel by float_codec.h.
#pragma once

#include "compressors/shared/compressor.h"

namespace thinwire {

class None : public Compressor {
 public:
  Exchange exchange(Work& work, Context& context) const override;
  bool serves_owners() const override { return true; }
};

}  // namespace thinwire
