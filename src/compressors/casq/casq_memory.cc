#include "compressors/casq/casq_memory.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/bytes.h"
#include "kernels/codes.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kVersion = 4;

void check_ascending(std::span<const float> thresholds) {
  const bool finite = std::all_of(thresholds.begin(), thresholds.end(), [](float value) { return std::isfinite(value); });
  if (!finite || !std::is_sorted(thresholds.begin(), thresholds.end()))
    throw PayloadError("a saved state of casq holds thresholds that are not finite and ascending");
}

}  // namespace

CasqMemory::CasqMemory(int bits, bool fixed_bits, std::span<const float> thresholds, std::uint64_t elements, std::uint64_t chunk)
    : fixed_bits_(fixed_bits),
      grid_{elements, chunk},
      committed_(for_all_chunks(bits, thresholds)),
      working_{bits, {}} {}

CasqMemory::State CasqMemory::for_all_chunks(int bits, std::span<const float> thresholds) const {
  State state{bits, {}};
  for (std::uint64_t i = 0; i < 2 * grid_.chunks(); ++i)
    state.thresholds.insert(state.thresholds.end(), thresholds.begin(), thresholds.end());
  return state;
}

std::span<float> CasqMemory::of_piece(const Piece& piece, Pass pass) {
  const std::uint64_t second = pass == Pass::kSecond ? 1 : 0;
  const std::uint64_t place = 2 * grid_.of(piece) + second;
  return std::span(working_.thresholds).subspan(place * working_.per_chunk(), working_.per_chunk());
}

void CasqMemory::train(int bits, std::span<const float> thresholds) { working_ = for_all_chunks(bits, thresholds); }

std::vector<std::byte> CasqMemory::save() const {
  std::vector<std::byte> saved(2 + ChunkGrid::kSavedBytes + committed_.thresholds.size() * sizeof(float));
  ByteWriter writer(saved);
  writer.write(kVersion);
  grid_.write(writer);
  writer.write(static_cast<std::uint8_t>(committed_.bits));
  writer.write_all(std::span<const float>(committed_.thresholds));
  return saved;
}

void CasqMemory::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, "a saved state of casq");
  reader.expect_version(kVersion);
  const ChunkGrid saved_grid = grid_.read(reader);
  const int bits = reader.read<std::uint8_t>();
  const bool fits = fixed_bits_ ? bits == committed_.bits : bits >= 1 && bits <= kernels::kMaxCodeBits;
  if (!fits) throw PayloadError("a saved state of casq is of " + std::to_string(bits) + " bits an entry");
  State loaded{bits, {}};
  const std::size_t of_both = 2 * loaded.per_chunk();
  std::vector<float> thresholds(saved_grid.chunks() * of_both);
  reader.read_into(std::span<float>(thresholds));
  reader.expect_end();
  for (auto rest = std::span<const float>(thresholds); !rest.empty(); rest = rest.subspan(loaded.per_chunk()))
    check_ascending(rest.first(loaded.per_chunk()));
  for (std::uint64_t i = 0; i < grid_.chunks(); ++i) {
    const auto here = std::span<const float>(thresholds).subspan(saved_grid.at(grid_.first(i)) * of_both, of_both);
    loaded.thresholds.insert(loaded.thresholds.end(), here.begin(), here.end());
  }
  committed_ = std::move(loaded);
}

}  // namespace thinwire
