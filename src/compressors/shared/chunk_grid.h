// The chunks of one parameter, for what a compressor remembers of each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/bytes.h"
#include "core/work.h"

namespace thinwire {

// How long chunks are depends on the number of workers, so that a memory which another number has saved may be of other chunks: it says
// which, and each chunk then takes over what was remembered where it begins.
struct ChunkGrid {
  std::uint64_t elements;  // of the parameter
  std::uint64_t chunk;     // of each chunk but the last

  std::uint64_t chunks() const { return (elements + chunk - 1) / chunk; }
  std::uint64_t first(std::uint64_t i) const { return i * chunk; }
  std::uint64_t length(std::uint64_t i) const { return std::min(chunk, elements - first(i)); }
  std::uint64_t at(std::uint64_t element) const { return element / chunk; }
  std::uint64_t of(const Piece& piece) const { return at(piece.first); }

  static constexpr std::size_t kSavedBytes = sizeof(std::uint32_t);
  void write(ByteWriter& writer) const { writer.write(static_cast<std::uint32_t>(chunk)); }
  // Of the same parameter, as write() has left it. Throws PayloadError.
  ChunkGrid read(ByteReader& reader) const {
    const auto saved = reader.read<std::uint32_t>();
    if (!std::has_single_bit(saved) || saved < kFewestChunkElements || saved > kChunkElements)
      throw PayloadError("a saved state is of chunks of " + std::to_string(saved) + " elements; allowed: powers of two from " +
                         std::to_string(kFewestChunkElements) + " to " + std::to_string(kChunkElements));
    return {elements, saved};
  }
};

}  // namespace thinwire
