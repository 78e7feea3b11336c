#include "compressors/shared/element_memory.h"

#include "core/bytes.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {

std::vector<std::byte> ElementMemory::save() const {
  std::vector<std::byte> saved(sizeof kVersion + committed_.size() * sizeof(float));
  ByteWriter writer(saved);
  writer.write(kVersion);
  writer.write_all(std::span<const float>(committed_));
  return saved;
}

void ElementMemory::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, "a saved memory of elements");
  reader.expect_version(kVersion);
  std::vector<float> loaded(committed_.size());
  reader.read_into(std::span(loaded));
  reader.expect_end();
  if (!kernels::scan(loaded).finite) throw PayloadError("a saved memory of elements has entries that are not finite");
  committed_ = std::move(loaded);
}

}  // namespace thinwire
