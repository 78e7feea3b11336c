// No compression: float32 values are summed by all-reduce. One round, 32 bits an element; the reference.
//
// Where gradients lie one behind the other as float32, they are summed in place: if a peer is lost then, they are lost too, as with
// plain all-reduce.
#pragma once

#include "compressors/shared/compressor.h"

namespace thinwire {

class None : public Compressor {
 public:
  Exchange exchange(Work& work, Context& context) const override;
};

}  // namespace thinwire
