// A worker's own momentum of a parameter, for compressors that do the optimizer's part: a float for each element, and another one while
// a step is under way. Saved with checkpoints; if the number of workers changes, all go on with that of one of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/work.h"

namespace thinwire {

class Momentum : public CompressorMemory {
 public:
  explicit Momentum(std::uint64_t elements) : committed_(elements), working_(elements) {}

  // Of a piece whose memory is one.
  static std::span<const float> before(const Piece& piece) { return of(piece).committed_of(piece); }
  // To be written for every piece of a step, before its commit point or after it.
  static std::span<float> after(const Piece& piece) { return of(piece).working_of(piece); }

  void begin_step() override {}  // what an earlier step has left in the working copy is overwritten
  void commit_step() override { committed_.swap(working_); }
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  static constexpr std::uint8_t kVersion = 1;
  static Momentum& of(const Piece& piece) { return static_cast<Momentum&>(*piece.memory); }
  std::span<const float> committed_of(const Piece& piece) const { return std::span(committed_).subspan(piece.first, piece.elements()); }
  std::span<float> working_of(const Piece& piece) { return std::span(working_).subspan(piece.first, piece.elements()); }

  std::vector<float> committed_, working_;
};

}  // namespace thinwire
