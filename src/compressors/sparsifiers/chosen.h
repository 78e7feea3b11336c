// Sparsifiers that send as many entries of a chunk as some rule chooses: rows say which (threshold.cc, sidco.cc).
//
// A code is nothing if no entry is sent; else their number less 1, as u16, and the entries (entries.h). One round; two where messages are
// longer than foreseen (foreseen.h).
#pragma once

#include "compressors/sparsifiers/entries.h"
#include "compressors/sparsifiers/foreseen.h"

namespace thinwire {

class ChosenEntries : public ForeseenCodec {
 public:
  static constexpr std::uint8_t kWireVersion = 1;
  struct Options {
    const char* name = "";
    std::uint8_t wire_id = 0;
    double first_share = 0.01;  // of a chunk's entries, which is foreseen before anything is known
    SentAs values = SentAs::kFloat32;
    Reduce reduce = Reduce::kGather;
  };
  explicit ChosenEntries(const Options& options) : ForeseenCodec(options.reduce), options_(options) {}

 protected:
  // Puts the places of what is to be sent first in `room`, ascending, and returns their number.
  // Pre: some value is not 0; room has kernels::selecting_room(values.size()) places, and as many behind them as there are values.
  virtual std::size_t choose(std::span<const float> values, const kernels::Magnitudes& magnitudes, std::span<std::uint16_t> room) const = 0;

 private:
  std::uint8_t wire_id() const override { return options_.wire_id; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override { return code_bytes(piece.elements(), piece.elements()); }
  std::size_t first_bytes(const Piece& piece) const override;
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;
  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;

  // Of a code with so many entries, at least one unless there are none.
  std::size_t code_bytes(std::size_t count, std::size_t elements) const {
    return sizeof(std::uint16_t) + EntriesCode(count, elements, options_.values).bytes();
  }

  Options options_;
};

}  // namespace thinwire
