// What is remembered of a parameter where a further stage carries what is sent of it, and may remember something too.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "compressors/shared/compressor.h"
#include "core/bytes.h"
#include "core/work.h"

namespace thinwire {

class CarryingMemory : public CompressorMemory {
 public:
  // carriers: what the stage remembers; null for nothing.
  explicit CarryingMemory(std::unique_ptr<CompressorMemory> carriers) : carriers_(std::move(carriers)) {}

  CompressorMemory* carriers() const { return carriers_.get(); }

  void begin_step() override;
  void commit_step() override;

 protected:
  // Last in what is saved.
  std::vector<std::byte> save_carriers() const { return carriers_ ? carriers_->save() : std::vector<std::byte>(); }
  void load_carriers(ByteReader& reader);

  std::unique_ptr<CompressorMemory> carriers_;
};

// The stage's plan_step(), with what it remembers of those parameters; memories are of CarryingMemory.
void plan_carriers(const Compressor& stage, std::span<CompressorMemory*> memories);

}  // namespace thinwire
