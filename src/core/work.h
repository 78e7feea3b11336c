// What an exchange works on: pieces of parameters, cut along a fixed grid.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/random.h"
#include "thinwire/layout.h"

namespace thinwire {

// What a compressor remembers of one parameter from step to step, the residual apart.
class CompressorMemory {
 public:
  virtual ~CompressorMemory() = default;
  // What a step changes lasts once it is committed; begin_step() forgets what an earlier step left uncommitted.
  virtual void begin_step() = 0;
  virtual void commit_step() = 0;
  // What was committed. The saved form begins with a version of its own. load() throws PayloadError, and changes nothing if it throws.
  virtual std::vector<std::byte> save() const = 0;
  virtual void load(std::span<const std::byte> saved) = 0;
};

// A range of one parameter. Chunks of the grid never change, so results do not depend on buckets or messages.
//
// Life of a piece with feedback: `gradient` holds the gradient and `residual` what was not sent before (fresh); opening
// adds the gradient to the residual and leaves the old residual in `gradient`, where it can be put back from (open); the
// exchange leaves the next residual in `residual` and writes the mean to `gradient` (done). Without feedback there is no
// residual, and values() and mean() are the same memory.
struct Piece {
  std::uint32_t parameter = 0;              // index in the layout
  const Parameter* definition = nullptr;    // of the layout: its name and shape
  std::uint64_t step = 0;       // reductions of its parameter so far, the same number on every worker
  std::uint64_t first = 0;      // its first element within the parameter
  std::uint64_t chunk = 0;      // its number in the grid of the whole layout
  std::uint64_t offset = 0;     // its first element among those of its message
  std::span<float> gradient;
  std::span<float> residual;  // empty without feedback
  CompressorMemory* memory = nullptr;
  // Whether this is a worker's own gradient, or the mean of a chunk that this worker owns.
  enum class Encoding : std::uint8_t { kFirst, kSecond } encoding = Encoding::kFirst;
  RandomSequence random = {};  // its own, of this step and worker
  bool used = true;  // whether this worker's gradient has any non-zero value here
  float energy = 0;  // sum of squares of the values, as it is opened
  enum class Stage : std::uint8_t { kFresh, kOpen, kDone } stage = Stage::kFresh;

  bool has_residual() const { return !residual.empty(); }
  // After opening: what is to be sent, gradient plus residual. At the end: what remains to be sent.
  std::span<float> values() const { return has_residual() ? residual : gradient; }
  std::span<float> mean() const { return gradient; }
};

// One message: pieces that travel together. Contract of every exchange, over all workers:
// sum of values at the beginning = world size x mean + sum of residuals at the end, to rounding.
struct Work {
  std::span<Piece> pieces;
  std::uint64_t elements = 0;  // of all pieces
  bool feedback = false;       // residuals last; without, there may be some for this step, to measure the error
  bool measured = false;       // pieces have residuals, and the error is wanted
  float gradient_scale = 1;    // gradients are multiplied by this before the residual is added
  bool fell_back = false;      // out: its own way had nothing to save, and it travelled as "none" does
  std::optional<double> first_error = {};  // sum of squares lost by the first encoding, where residuals hold more than that
};

// A whole parameter, for what must be seen before its pieces travel.
class ParameterView {
 public:
  virtual ~ParameterView() = default;
  virtual const Parameter& definition() const = 0;
  std::uint64_t elements() const { return definition().elements(); }
  virtual CompressorMemory& memory() const = 0;
  // Copies gradient plus residual of the elements from `first` on.
  virtual void read(std::uint64_t first, std::span<float> values) const = 0;
};

// Most elements of a chunk of the grid, unless one unit of its compressor has more: it fits in a core's own cache twice
// over, with room for its codes.
inline constexpr std::uint64_t kChunkElements = 32768;

}  // namespace thinwire
