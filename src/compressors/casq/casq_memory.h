// What CASQ remembers of a parameter: how many bits its entries take, and every chunk's thresholds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compressors/shared/chunk_grid.h"
#include "compressors/shared/codec.h"
#include "core/work.h"

namespace thinwire {

// Normalised, ascending thresholds of every chunk of a parameter, and of the mean of every chunk that this worker owns:
// trained by all workers together, they follow what they divide by one step of Lloyd's algorithm at every encoding. Chunks'
// thresholds are separate memory, so pieces may be encoded side by side.
class CasqMemory : public CompressorMemory {
 public:
  // thresholds: 2^bits - 1 of them. fixed_bits: a state of other bits may not be loaded. chunk: elements of one.
  CasqMemory(int bits, bool fixed_bits, std::span<const float> thresholds, std::uint64_t elements, std::uint64_t chunk);

  int bits() const { return working_.bits; }
  const ChunkGrid& grid() const { return grid_; }
  std::span<float> of_piece(const Piece& piece, Pass pass);
  // All chunks', from now on.
  void train(int bits, std::span<const float> thresholds);

  void begin_step() override { working_ = committed_; }
  void commit_step() override { committed_ = working_; }
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  struct State {
    int bits;
    std::vector<float> thresholds;  // [chunk][encoding][threshold]
    std::size_t per_chunk() const { return (std::size_t{1} << bits) - 1; }
  };
  State for_all_chunks(int bits, std::span<const float> thresholds) const;

  bool fixed_bits_;
  ChunkGrid grid_;
  State committed_;
  State working_;  // of the step at hand
};

}  // namespace thinwire
