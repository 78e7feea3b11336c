// What an exchange works on: pieces of parameters, cut along a fixed grid.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/random.h"
#include "thinwire/collective.h"
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

// A gradient, or part of one, in memory of its owner: kFloat32, kBfloat16 or kFloat16.
struct GradientSpan {
  ElementType type = ElementType::kFloat32;
  std::span<std::byte> bytes;

  GradientSpan() = default;
  GradientSpan(ElementType the_type, std::span<std::byte> the_bytes) : type(the_type), bytes(the_bytes) {}
  GradientSpan(std::span<float> floats) : bytes(std::as_writable_bytes(floats)) {}

  std::uint64_t size() const { return bytes.size() / element_bytes(type); }
  GradientSpan part(std::uint64_t first, std::uint64_t count) const {
    return {type, bytes.subspan(first * element_bytes(type), count * element_bytes(type))};
  }
  bool is_float() const { return type == ElementType::kFloat32; }
  // Pre: is_float().
  std::span<float> floats() const { return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)}; }
};

// A range of one parameter. Chunks of the grid never change, so results do not depend on buckets or messages.
//
// An exchange reads the gradient and the residual, which no encoding changes. Only past its commit point does it write the mean over
// the gradient and what was not sent over the residual (shared/message.h); where the next residual is other memory, it may be there before.
struct Piece {
  std::uint32_t parameter = 0;              // index in the layout
  const Parameter* definition = nullptr;    // of the layout: its name and shape
  std::uint64_t step = 0;       // committed steps of its parameter so far, the same number on every worker
  std::uint64_t first = 0;      // its first element within the parameter
  std::uint32_t owner = 0;      // the worker that averages it, where workers share that among them
  std::uint64_t offset = 0;     // its first element among those of its message
  GradientSpan gradient;
  std::span<const float> residual;    // what was not sent before; empty without feedback
  std::span<float> next_residual;     // where to leave what is not sent now: residual's memory, or other memory of that length
  CompressorMemory* memory = nullptr;
  RandomSequence random = {};  // its own, of this step and worker

  std::uint64_t elements() const { return gradient.size(); }
  bool has_residual() const { return !next_residual.empty(); }
};

// What a compressor tells of a message beyond its mean; counters add it up.
struct Report {
  // Of each piece, where the error is measured: sums of squares of what was to be sent, and of what its first encoding lost. Figures
  // that no single worker can know are left out of both.
  std::span<double> energies, errors;
  std::uint64_t row_elements = 0;  // of pieces that travel by rows
  bool fell_back = false;          // its own way had nothing to save, and it travelled as "none" does
};

// Who gets what.
enum class Direction : std::uint8_t {
  kToAll,       // all-reduce: every worker gets every mean
  kToOwners,    // reduce-scatter: a piece's owner alone gets its mean, and the other workers' gradients stay as they are
  kFromOwners,  // all-gather: every worker gets the owner's values, as they are decoded; the others' are zeros
};

// One message: pieces that travel together. Contract of every exchange whose row claims conservation, over all workers:
// sum of (gradients * gradient_scale + residuals) = world size * mean + sum of next residuals, to rounding.
struct Work {
  std::span<const Piece> pieces;
  std::uint64_t elements = 0;  // of all pieces
  bool feedback = false;       // pieces have residuals
  bool measured = false;       // the error is wanted: report.energies and errors are there
  float gradient_scale = 1;    // gradients are multiplied by this before residuals are added, and means divided by it
  float residual_decay = 1;    // the share of residuals that is added; below 1, the rest is forgotten
  float largest_mean = 0;      // greater ones, before they are divided, do not fit into the gradients' types
  Direction direction = Direction::kToAll;
  bool is_stage = false;       // carried for another compressor, in memory of that one's: commits at once
  Report report = {};
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
// over, with room for its codes. And the fewest, where many workers share them: fewer keep codecs' loops too short.
inline constexpr std::uint64_t kChunkElements = 32768;
inline constexpr std::uint64_t kFewestChunkElements = 4096;

}  // namespace thinwire
