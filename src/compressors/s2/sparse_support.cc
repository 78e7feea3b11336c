#include "compressors/s2/sparse_support.h"

#include <algorithm>
#include <bit>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

enum Kind : std::uint8_t { kBitmap = 0, kGaps = 1 };

// Calls body(gap) for every marked bit.
template <class Body>
void for_each_gap(std::span<const std::uint32_t> words, const Body& body) {
  std::uint64_t next = 0;
  for (std::size_t w = 0; w < words.size(); ++w)
    for (std::uint32_t left = words[w]; left != 0; left &= left - 1) {
      const std::uint64_t bit = 32 * w + static_cast<std::uint64_t>(std::countr_zero(left));
      body(bit - next);
      next = bit + 1;
    }
}

std::size_t bytes_of_gap(std::uint64_t gap) { return gap == 0 ? 1 : (static_cast<std::size_t>(std::bit_width(gap)) + 6) / 7; }

std::size_t bytes_of_gaps(std::span<const std::uint32_t> words) {
  std::size_t bytes = 0;
  for_each_gap(words, [&](std::uint64_t gap) { bytes += bytes_of_gap(gap); });
  return bytes;
}

std::uint64_t read_gap(ByteReader& reader) {
  std::uint64_t gap = 0;
  for (int shift = 0; shift < 56; shift += 7) {
    const auto byte = reader.read<std::uint8_t>();
    gap |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return gap;
  }
  throw PayloadError("a gap between rows is longer than any message");
}

}  // namespace

std::size_t support_bytes(std::span<const std::uint32_t> words) {
  return 1 + std::min(words.size_bytes(), bytes_of_gaps(words));
}

void write_support(std::span<const std::uint32_t> words, ByteWriter& writer) {
  if (bytes_of_gaps(words) >= words.size_bytes()) {
    writer.write(kBitmap);
    writer.write_all(words);
    return;
  }
  writer.write(kGaps);
  for_each_gap(words, [&](std::uint64_t gap) {
    for (; gap >= 0x80; gap >>= 7) writer.write(static_cast<std::uint8_t>(gap | 0x80));
    writer.write(static_cast<std::uint8_t>(gap));
  });
}

void read_support(ByteReader& reader, std::span<std::uint32_t> words) {
  const auto kind = reader.read<std::uint8_t>();
  if (kind == kBitmap) {
    reader.read_into(words);
    return reader.expect_end();
  }
  if (kind != kGaps) throw PayloadError("rows are said in form " + std::to_string(kind) + "; there are forms 0 and 1");
  std::ranges::fill(words, 0u);
  const std::uint64_t bits = 32 * words.size();
  for (std::uint64_t bit = 0; reader.left() > 0; ++bit) {
    bit += read_gap(reader);
    if (bit >= bits) throw PayloadError("a worker marks row " + std::to_string(bit) + " of " + std::to_string(bits));
    words[bit / 32] |= std::uint32_t{1} << (bit % 32);
  }
}

}  // namespace thinwire
