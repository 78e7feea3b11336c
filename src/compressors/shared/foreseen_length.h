// How long messages of codes of any length will be: a parameter's are foreseen to be as long as the longest of its last step, and a
// sixteenth, as lengths vary; so they travel in one round but where gradients change, or nothing is known yet. No result depends on it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compressors/shared/codec.h"
#include "core/work.h"

namespace thinwire {

// What messages of a parameter's last step have taken for each element, all as long as the longest, by passes; 0 where there was none.
class ForeseenLength : public CompressorMemory {
 public:
  void begin_step() override { noted_ = {}; }
  void commit_step() override;
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

  // For Codec::usual_bytes() and foresee(), of pieces whose memory this is. first: of a piece of which nothing is known yet.
  static std::size_t usual_bytes(const Piece& piece, Pass pass, std::size_t first, std::size_t most);
  static void foresee(std::span<const Piece* const> pieces, Pass pass, double bytes_an_element);

 private:
  static constexpr std::uint8_t kVersion = 1;
  using Lengths = std::array<float, 2>;
  Lengths committed_{}, noted_{};
};

}  // namespace thinwire
