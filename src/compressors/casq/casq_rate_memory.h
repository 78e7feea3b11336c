// What casq:rate= remembers of a parameter: what its codes took at which step, from which the next step follows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "compressors/shared/chunk_grid.h"
#include "compressors/shared/codec.h"
#include "core/work.h"

namespace thinwire::casq {

// Messages take no more than so many times what samples tell, and no less than that part of it; what is beyond is chance.
constexpr double kMostCorrection = 4;
// Bytes of ChunkRecord::longest: of a few elements most is the message's head, of which there is one for each worker.
constexpr std::uint32_t kMostLongest = 1024 * kChunkElements;

// Of a chunk's last encoding.
struct ChunkRecord {
  float step = 0;              // 0: it was never encoded
  float elements = 0;
  float code_bits = 0;
  float correction = 1;        // what its messages took in the last steps, as multiples of what samples told
  float slope = 1;             // bits are as step^-slope, near it
  float mean_square = 0;       // of its entries
  float aimed = 0;             // bits an entry that messages aimed at: the same on every worker, as are
  float owed = 0;              // bits an entry that earlier steps had sent beyond the rate, and
  std::uint32_t longest = 0;   // bytes sent for kChunkElements entries, as all messages are as long as the longest; 0: not yet
  std::uint32_t age = 0;       // 0: encoded in the last step that its parameter took part in
};

// What is foreseen of a step, at each pass.
struct RatePlan {
  float step = 0;     // to encode with; 0: nothing is known yet
  float slope = 1;    // bits are as step^-slope, near it
  float aimed = 0;    // bits an entry that messages aim at if nothing is owed: the same on every worker; 0: the rate
  float owed = 0;     // bits an entry that earlier steps have sent beyond the rate: the same on every worker
  double share = 1;   // of what is foretold at that step, to take no more than the rate in all
  double usual = 0;   // messages will be so many times as long as the longest were: the same on every worker; 0: nothing is known
};

class CasqRateMemory : public CompressorMemory {
 public:
  // elements: of the parameter. chunk: elements of one.
  CasqRateMemory(std::uint64_t elements, std::uint64_t chunk);

  // Of the chunk that begins where the piece does; chunks' are separate memory.
  ChunkRecord& record(const Piece& piece, Pass pass) { return working_[place(piece, pass)]; }
  // Set before a step's first reduction, and not part of what is committed.
  RatePlan& plan(Pass pass) { return plans_[static_cast<std::size_t>(pass)]; }
  std::span<const ChunkRecord> committed(Pass pass) const;
  const ChunkGrid& grid() const { return grid_; }

  void begin_step() override;
  void commit_step() override { committed_ = working_; }
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  std::size_t place(const Piece& piece, Pass pass) const { return (pass == Pass::kSecond ? grid_.chunks() : 0) + grid_.of(piece); }

  ChunkGrid grid_;
  std::array<RatePlan, 2> plans_;
  std::vector<ChunkRecord> committed_;  // [pass][chunk]
  std::vector<ChunkRecord> working_;    // of the step at hand
};

inline CasqRateMemory& memory_of(const Piece& piece) { return static_cast<CasqRateMemory&>(*piece.memory); }

// What a chunk's code will take at another step.
double foretold_bits(const ChunkRecord& chunk, double step, double slope);

// The plans of parameters that share a step at each pass, from what they have committed; memories are of CasqRateMemory. rates: of both
// passes. weight: a parameter's step is its root mean square to that power times the common one.
void plan_rates(std::span<CompressorMemory* const> memories, std::array<double, 2> rates, double weight);

}  // namespace thinwire::casq
