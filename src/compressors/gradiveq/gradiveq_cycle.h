// What GradiVeQ remembers of a parameter: its basis, and at the parameter's owner what the next one is learnt from.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "compressors/gradiveq/principal_components.h"
#include "compressors/shared/carrying_memory.h"
#include "core/background.h"
#include "core/work.h"

namespace thinwire {

// A cycle's steps: `learn` in which moments are gathered, `lag` in which principal components are found, both of them
// uncompressed, and `use` in which gradients are projected on them.
struct Schedule {
  std::uint64_t learn = 100;
  std::uint64_t lag = 2;
  std::uint64_t use = 400;

  std::uint64_t position(std::uint64_t step) const { return step % (learn + lag + use); }
  bool learns(std::uint64_t step) const { return position(step) < learn; }
  bool uses(std::uint64_t step) const { return position(step) >= learn + lag; }
  // The first step of a basis, before which it is sent to all workers.
  bool swaps(std::uint64_t step) const { return position(step) == learn + lag; }
};

struct GradiveqOptions {
  Schedule schedule;
  std::optional<Axis> axis;  // none: chosen for each parameter
  std::size_t slice = 576;   // most entries of a slice
  BasisSize size;
  std::uint64_t smallest = 4096;  // parameters of fewer elements travel uncompressed
};

// Elements of a piece, the last one of a parameter apart.
std::uint64_t piece_elements(const Parameter& parameter, const GradiveqOptions& options);

// What carries coefficients, or with feedback values where there is no basis, may remember something of them, which is forgotten where what it
// carries changes: with a cycle's first step, and with the first that uses its basis.
class GradiveqCycle : public CarryingMemory {
 public:
  // stage: what carries the coefficients; null for none. It and `background` outlive this.
  GradiveqCycle(const Parameter& parameter, const GradiveqOptions& options, const Compressor* stage, Background& background);

  // Null where the parameter travels uncompressed in this step.
  const Basis* basis(std::uint64_t step, int world_size);

  // In every learning step: its parameter's owner learns, and whoever holds what was learnt in this cycle before the number of
  // workers, and so the owner, changed.
  void begin_learning(std::uint64_t step, bool is_owner, int world_size);
  // Takes part of the aggregated gradient, from element `first` on, if this worker learns. Parts may come from several threads.
  void learn(std::uint64_t first, std::span<const float> mean);

  // Before a basis is used: waits for what this worker has found. Null if that is nothing.
  const Basis* found();
  // Of how many steps that was learnt.
  std::uint32_t learnt_steps() const { return learned_ ? learned_->steps : 0; }
  // The basis of the cycle that begins; null for none, and the parameter stays uncompressed.
  void use(std::shared_ptr<const Basis> basis);

  // What is received of a basis, or throws PayloadError.
  std::shared_ptr<const Basis> read_basis(const BasisKind& kind, std::span<const float> numbers) const;
  static std::size_t basis_numbers(const Basis& basis);
  std::size_t basis_numbers(std::size_t dims, std::size_t entries) const { return numbers(dims, entries, options_.size.rate > 0); }
  static void write_basis(const Basis& basis, std::span<float> numbers);
  Slices slices(Axis axis) const { return Slices(parameter_, axis, options_.slice); }
  // Of the stage in this step; null if it remembers nothing, or the parameter is not for it.
  CompressorMemory* stage_memory() const { return fresh_ ? fresh_.get() : carriers(); }
  // A parameter of few elements travels uncompressed in all steps.
  bool is_small() const { return parameter_.elements() < options_.smallest; }
  // Where a piece's coefficients begin among all of its parameter's: chunks that the stage cuts them into are whole, and other pieces' are others.
  std::uint64_t first_coefficient(const Piece& piece) const;

  void begin_step() override;
  void commit_step() override;
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  // Moves to the background thread when a learning phase ends.
  struct Learned {
    std::vector<Moments> moments;
    std::uint32_t steps = 0;
    float scale = 0;  // gradients are multiplied by it, a power of 2, so that their squares are floats; 0: none yet
    std::optional<Basis> basis;
    std::shared_future<void> done;  // valid once principal components are sought
  };

  // Components, mean and deviations; of a code widths and steps, too.
  static std::size_t numbers(std::size_t dims, std::size_t entries, bool coded) { return dims * entries + entries + (coded ? 3 : 1) * dims; }
  void read_code(Basis& basis, std::span<const float> numbers) const;
  std::shared_ptr<const Basis> first_components(const Basis& basis, std::size_t count) const;
  bool is_learning() const { return learned_ && !learned_->done.valid(); }
  void add_seen();
  void find_in_background();
  std::shared_ptr<Learned> fresh() const;
  std::uint64_t most_coefficients_of_piece() const;
  std::unique_ptr<CompressorMemory> make_carriers() const;
  void forget_carriers();

  Parameter parameter_;
  GradiveqOptions options_;
  const Compressor* stage_;
  Background& background_;
  std::uint64_t piece_elements_, piece_coefficients_;
  std::shared_ptr<const Basis> committed_;
  std::shared_ptr<const Basis> working_;
  // Of `of`, whose bits were divided for fewer workers, the components that have a level for more of them; null if none has.
  struct Shortened {
    std::shared_ptr<const Basis> of, basis;
    int world_size = 0;
  } shortened_;
  std::shared_ptr<Learned> learned_;  // null where another worker learns
  // Of the step at hand, until it is committed.
  std::optional<std::uint64_t> seen_step_;
  std::vector<float> seen_;  // the aggregated gradient
  bool forgets_ = false;     // what was learnt is used, or of an earlier cycle
  std::unique_ptr<CompressorMemory> fresh_;  // of the stage, where it begins anew in this step
};

}  // namespace thinwire
