#include "compressors/shared/foreseen_length.h"

#include <algorithm>

#include "core/bytes.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr double kMore = 1 + 1.0 / 16;
constexpr float kMostBytes = 1024;  // an element: a short message's head

ForeseenLength& length_of(const Piece& piece) { return static_cast<ForeseenLength&>(*piece.memory); }

}  // namespace

std::size_t ForeseenLength::usual_bytes(const Piece& piece, Pass pass, std::size_t first, std::size_t most) {
  const float bytes = length_of(piece).committed_[static_cast<std::size_t>(pass)];
  if (bytes == 0) return first;
  return std::min(most, static_cast<std::size_t>(kMore * static_cast<double>(bytes) * static_cast<double>(piece.elements())));
}

void ForeseenLength::foresee(std::span<const Piece* const> pieces, Pass pass, double bytes_an_element) {
  for (const Piece* piece : pieces) {
    float& noted = length_of(*piece).noted_[static_cast<std::size_t>(pass)];
    noted = std::max(noted, std::min(static_cast<float>(bytes_an_element), kMostBytes));
  }
}

void ForeseenLength::commit_step() {
  for (std::size_t pass = 0; pass < noted_.size(); ++pass)
    if (noted_[pass] > 0) committed_[pass] = noted_[pass];
  noted_ = {};
}

std::vector<std::byte> ForeseenLength::save() const {
  std::vector<std::byte> saved(sizeof kVersion + sizeof committed_);
  ByteWriter writer(saved);
  writer.write(kVersion);
  writer.write(committed_);
  return saved;
}

void ForeseenLength::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, "a saved state of lengths");
  reader.expect_version(kVersion);
  const auto loaded = reader.read<Lengths>();
  reader.expect_end();
  if (!std::ranges::all_of(loaded, [](float bytes) { return bytes >= 0 && bytes <= kMostBytes; }))
    throw PayloadError("a saved state holds lengths of messages that no step leaves behind");
  committed_ = loaded;
}

}  // namespace thinwire
