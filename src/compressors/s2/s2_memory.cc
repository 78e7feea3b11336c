#include "compressors/s2/s2_memory.h"

#include <cmath>

#include "core/bytes.h"

namespace thinwire {
namespace {

bool is_share(float value) { return value >= 0 && value <= 1; }

}  // namespace

void S2Memory::begin_step() {
  working_ = committed_;
  CarryingMemory::begin_step();
}

void S2Memory::commit_step() {
  ++steps_;
  committed_ = working_;
  CarryingMemory::commit_step();
}

std::vector<std::byte> S2Memory::save() const {
  const std::vector<std::byte> carriers = save_carriers();
  std::vector<std::byte> saved(sizeof(kVersion) + sizeof(steps_) + sizeof(committed_.by_any) + sizeof(committed_.by_most) + carriers.size());
  ByteWriter writer(saved);
  writer.write(kVersion);
  writer.write(steps_);
  writer.write(committed_.by_any);
  writer.write(committed_.by_most);
  writer.write_all(std::span<const std::byte>(carriers));
  return saved;
}

void S2Memory::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, "a saved state of s2");
  reader.expect_version(kVersion);
  const auto steps = reader.read<std::uint64_t>();
  Seen seen;
  seen.by_any = reader.read<float>();
  seen.by_most = reader.read<float>();
  if (!is_share(seen.by_any) || !is_share(seen.by_most))
    throw PayloadError("a saved state of s2 holds a share of rows that is not between 0 and 1");
  load_carriers(reader);
  steps_ = steps;
  committed_ = seen;
}

}  // namespace thinwire
