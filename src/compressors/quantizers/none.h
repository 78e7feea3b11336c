// No compression: float32 values are summed by all-reduce. One round, 32 bits an element; the reference.
#pragma once

#include "compressors/shared/compressor.h"

namespace thinwire {

class None : public Compressor {
 public:
  Exchange exchange(Work& work, Context& context) const override;
};

}  // namespace thinwire
