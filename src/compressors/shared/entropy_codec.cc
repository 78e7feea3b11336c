#include "compressors/shared/entropy_codec.h"

#include <algorithm>
#include <string>

#include "compressors/shared/elias.h"
#include "compressors/shared/frequency_code.h"
#include "core/aligned.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::size_t kBeyond = std::max(kFrequencyCodeReadsBeyond, kEliasReadsBeyond);

enum class Kind : std::uint8_t { kPacked, kFrequencies, kSparseElias, kDenseElias };

[[noreturn]] void refuse(const std::string& why) { throw PayloadError("a chunk of numbers that are coded " + why); }


std::uint8_t zero_of(int bits) { return static_cast<std::uint8_t>((1U << (bits - 1)) - 1); }

}  // namespace

// Numbers, and the copy of a code with what is read beyond it.
std::size_t EntropyCodec::room_bytes(const Piece& piece, std::size_t codes) const {
  const auto [begin, count, bits] = fixed_.numbers(piece);
  const std::size_t own = whole_lines(count) + whole_lines(most_bytes(piece) + kBeyond) + frequency_code_room_bytes(count, bits);
  return codes * (whole_lines(fixed_.most_bytes(piece)) + sizeof(std::span<std::byte>)) + whole_lines(fixed_.room_bytes(piece, codes)) + own;
}

std::size_t EntropyCodec::encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                                       std::span<std::byte> code, std::span<std::byte> room) const {
  if (magnitudes.largest == 0) return 0;
  const auto fixed = carve<std::byte>(room, whole_lines(fixed_.most_bytes(piece))).first(fixed_.most_bytes(piece));
  const auto inner_room = carve<std::byte>(room, whole_lines(fixed_.room_bytes(piece, 1)));
  fixed_.encode_piece(piece, pass, values, magnitudes, fixed, inner_room);

  const auto [begin, count, bits] = fixed_.numbers(piece);
  const auto packed = fixed.subspan(begin);
  const auto numbers = carve<std::uint8_t>(room, whole_lines(count)).first(count);
  const auto string = carve<std::byte>(room, whole_lines(most_bytes(piece) + kBeyond));
  kernels::unpack(packed, bits, numbers);
  auto kind = Kind::kPacked;
  std::size_t length = packed.size();
  if (coding_ == Coding::kElias) {
    const EliasNumbers levels{numbers, zero_of(bits)};
    const std::size_t sparse = elias_bits(levels, EliasForm::kSparse), dense = elias_bits(levels, EliasForm::kDense);
    if (const std::size_t bytes = (std::min(sparse, dense) + 7) / 8; bytes < length) {
      length = bytes;
      kind = sparse < dense ? Kind::kSparseElias : Kind::kDenseElias;
      write_elias(levels, sparse < dense ? EliasForm::kSparse : EliasForm::kDense, string.data());
    }
  } else if (const std::size_t bytes = write_frequency_code(numbers, bits, string.first(length), room); bytes > 0) {
    length = bytes;
    kind = Kind::kFrequencies;
  }

  ByteWriter writer(code);
  writer.write_all(std::span<const std::byte>(fixed.first(begin)));
  writer.write(kind);
  writer.write_all(std::span<const std::byte>(kind == Kind::kPacked ? packed : string.first(length)));
  return code.size() - writer.left();
}

std::span<const std::byte> EntropyCodec::restore(std::span<const std::byte> code, const Piece& piece, std::span<std::byte> fixed,
                                                 std::span<std::byte> room) const {
  const auto [begin, count, bits] = fixed_.numbers(piece);
  ByteReader reader(code, "a chunk of numbers that are coded");
  std::ranges::copy(reader.take(begin), fixed.begin());
  const auto kind = reader.read<Kind>();
  const std::size_t left = reader.left();
  const auto rest = reader.take(left);
  const auto packed = fixed.subspan(begin);
  if (kind == Kind::kPacked) {
    if (left != packed.size()) refuse("has " + std::to_string(left) + " bytes as they are instead of " + std::to_string(packed.size()));
    std::ranges::copy(rest, packed.begin());
  } else {
    const bool is_elias = kind == Kind::kSparseElias || kind == Kind::kDenseElias;
    if (is_elias != (coding_ == Coding::kElias) || kind > Kind::kDenseElias)
      refuse("is of kind " + std::to_string(static_cast<int>(kind)) + ", which there is not");
    if (left >= packed.size()) refuse("is no shorter than it was");
    const auto numbers = carve<std::uint8_t>(room, whole_lines(count)).first(count);
    const auto string = carve<std::byte>(room, whole_lines(most_bytes(piece) + kBeyond));
    std::ranges::copy(rest, string.begin());
    std::ranges::fill(string.subspan(left, kBeyond), std::byte{0});
    if (is_elias)
      read_elias(string.data(), left, kind == Kind::kSparseElias ? EliasForm::kSparse : EliasForm::kDense, zero_of(bits), numbers);
    else
      read_frequency_code(string.data(), left, bits, numbers, room);
    kernels::pack(numbers, bits, packed);
  }
  fixed_.check(fixed, piece);
  return fixed;
}

void EntropyCodec::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                          std::span<std::byte> room) const {
  if (code.empty()) {
    if (!add) std::ranges::fill(values, 0.0f);
    return;
  }
  const auto fixed = carve<std::byte>(room, whole_lines(fixed_.most_bytes(piece))).first(fixed_.most_bytes(piece));
  const auto inner_room = carve<std::byte>(room, whole_lines(fixed_.room_bytes(piece, 1)));
  fixed_.decode(restore(code, piece, fixed, room), piece, weight, add, values, inner_room);
}

void EntropyCodec::decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float weight, std::span<float> values,
                              std::span<std::byte> room) const {
  const std::size_t bytes = fixed_.most_bytes(piece);
  const auto all = carve<std::byte>(room, codes.size() * whole_lines(bytes));
  const auto inner_room = carve<std::byte>(room, whole_lines(fixed_.room_bytes(piece, codes.size())));
  const auto restored = carve<std::span<const std::byte>>(room, codes.size());
  std::size_t count = 0;
  for (const auto code : codes) {
    if (code.empty()) continue;
    restored[count] = restore(code, piece, all.subspan(count * whole_lines(bytes), bytes), room);
    ++count;
  }
  if (count == 0)
    std::ranges::fill(values, 0.0f);
  else
    fixed_.decode_sum(restored.first(count), piece, weight, values, inner_room);
}

SpecParameter coding() {
  return choice("coding", {"fixed", "entropy"},
                "fixed: as many bits for each number of a level; entropy: as many as its frequency in the chunk is worth, in messages of any length");
}

Coding coding_of(const SpecValues& values) {
  const std::string& text = values.choice("coding");
  if (text == "fixed") return Coding::kFixed;
  return text == "elias" ? Coding::kElias : Coding::kEntropy;
}

}  // namespace thinwire
