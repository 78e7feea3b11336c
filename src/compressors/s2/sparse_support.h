// How a worker says which rows it has: a bitmap, or the gaps between them where that is shorter.
#pragma once

#include <cstdint>
#include <span>

#include "core/bytes.h"

namespace thinwire {

// One byte of kind, then either all words, or for each marked bit in order the number of unmarked ones before it since the
// last, in 7 bits a byte, least significant first, with the eighth bit where more follow. A code has at most
// 1 + 4 * words.size() bytes.
std::size_t support_bytes(std::span<const std::uint32_t> words);
void write_support(std::span<const std::uint32_t> words, ByteWriter& writer);
// Reads until the end. Throws PayloadError if a bit is beyond the words.
void read_support(ByteReader& reader, std::span<std::uint32_t> words);

}  // namespace thinwire
