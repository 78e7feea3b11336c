#include "compressors/shared/carrying_memory.h"

namespace thinwire {

void CarryingMemory::begin_step() {
  if (carriers_) carriers_->begin_step();
}

void CarryingMemory::commit_step() {
  if (carriers_) carriers_->commit_step();
}

void CarryingMemory::load_carriers(ByteReader& reader) {
  if (carriers_)
    carriers_->load(reader.take(reader.left()));
  else
    reader.expect_end();
}

void plan_carriers(const Compressor& stage, std::span<CompressorMemory*> memories) {
  std::size_t carriers = 0;
  for (CompressorMemory* memory : memories)
    if (CompressorMemory* const of_stage = static_cast<CarryingMemory*>(memory)->carriers()) memories[carriers++] = of_stage;
  if (carriers > 0) stage.plan_step(memories.first(carriers));
}

}  // namespace thinwire
