// Floats of a parameter, residuals apart, one for each element or as many as a compressor wants, and as many more while a step is under way: a
// worker's own momentum, for compressors that do the optimizer's part, or what all workers know alike. Saved with checkpoints; if the number
// of workers changes, all go on with that of one of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/work.h"

namespace thinwire {

class ElementMemory : public CompressorMemory {
 public:
  explicit ElementMemory(std::uint64_t floats) : committed_(floats), working_(floats) {}

  // Of a piece whose memory is one: those of its elements, or others.
  static std::span<const float> before(const Piece& piece) { return before(piece, piece.first, piece.elements()); }
  static std::span<const float> before(const Piece& piece, std::uint64_t first, std::uint64_t count) {
    return std::span(of(piece).committed_).subspan(first, count);
  }
  // To be written for every piece of a step, before its commit point or after it.
  static std::span<float> after(const Piece& piece) { return after(piece, piece.first, piece.elements()); }
  static std::span<float> after(const Piece& piece, std::uint64_t first, std::uint64_t count) {
    return std::span(of(piece).working_).subspan(first, count);
  }

  void begin_step() override {}  // what an earlier step has left in the working copy is overwritten
  void commit_step() override { committed_.swap(working_); }
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  static constexpr std::uint8_t kVersion = 1;
  static ElementMemory& of(const Piece& piece) { return static_cast<ElementMemory&>(*piece.memory); }

  std::vector<float> committed_, working_;
};

}  // namespace thinwire
