#include "compressors/sparsifiers/chosen.h"

#include <algorithm>
#include <string>

#include "compressors/sparsifiers/density.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "kernels/selecting.h"
#include "thinwire/errors.h"

namespace thinwire {

std::size_t ChosenEntries::first_bytes(const Piece& piece) const {
  return code_bytes(kept_entries(options_.first_share, piece.elements()), piece.elements());
}

std::size_t ChosenEntries::room_bytes(const Piece& piece, std::size_t /*codes*/) const {
  return (kernels::selecting_room(piece.elements()) + piece.elements()) * sizeof(std::uint16_t);
}

std::size_t ChosenEntries::encode_piece(const Piece& /*piece*/, Pass /*pass*/, std::span<float> values,
                                        const kernels::Magnitudes& magnitudes, std::span<std::byte> code, std::span<std::byte> room) const {
  if (magnitudes.largest == 0) return 0;
  const auto places = carve<std::uint16_t>(room, kernels::selecting_room(values.size()) + values.size());
  const std::size_t count = choose(values, magnitudes, places);
  if (count == 0) return 0;
  ByteWriter writer(code.first(code_bytes(count, values.size())));
  writer.write(static_cast<std::uint16_t>(count - 1));
  EntriesCode(count, values.size(), options_.values).write(values, places.first(count), writer.take(writer.left()));
  return code_bytes(count, values.size());
}

void ChosenEntries::decode(std::span<const std::byte> code, const Piece& /*piece*/, float weight, bool add, std::span<float> values,
                           std::span<std::byte> /*room*/) const {
  if (!add) std::ranges::fill(values, 0.0f);
  if (code.empty()) return;
  const std::string what = std::string("a chunk of ") + options_.name;
  ByteReader reader(code, what.c_str());
  const std::size_t count = std::size_t{reader.read<std::uint16_t>()} + 1;
  if (count > values.size())
    throw PayloadError(what + " has " + std::to_string(count) + " entries; " + std::to_string(values.size()) + " are possible");
  const EntriesCode entries(count, values.size(), options_.values);
  const auto bytes = reader.take(entries.bytes());
  reader.expect_end();
  if (!entries.check(bytes, options_.name)) throw PayloadError(what + " has no places for the entries that it says it has");
  entries.add(bytes, weight, values);
}

}  // namespace thinwire
