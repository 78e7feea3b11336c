// What every compressor offers to the reducer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/context.h"
#include "core/exchange.h"
#include "core/work.h"
#include "thinwire/registry.h"

namespace thinwire {

// Stateless itself: what must be remembered is in the pieces' residual and memory. Used by several lanes at once.
class Compressor {
 public:
  virtual ~Compressor() = default;

  // Averages one message over all workers; see Work for the contract. `work` and `context` outlive the exchange.
  virtual Exchange exchange(Work& work, Context& context) const = 0;

  // What the spec's feedback=auto means.
  virtual bool needs_feedback() const { return false; }
  // Whether what it does depends on the link, which should then be measured (Reducer::measure_link).
  virtual bool chooses_by_link() const { return false; }

  // Whether its codes go from worker to worker, so that it can leave a piece's mean with its owner alone, or bring the owner's values to all.
  virtual bool serves_owners() const { return false; }

  // What it cannot encode in parts. The grid's chunks are elements, whole parameters, also where units are rows, or as many slices as
  // slice_elements() says, the last chunk of a parameter apart.
  virtual Unit unit() const { return Unit::kElement; }
  // Asked if units are slices.
  virtual std::uint64_t slice_elements(const Parameter& /*parameter*/) const { return 1; }

  // How short chunks may be, where units are elements and many workers share them (thinwire/reducer.h): as a rule they are as long as ever, since
  // what is found in a longer one, such as its largest entries, is better, and codecs lose time at each.
  virtual std::uint64_t fewest_chunk_elements() const { return kChunkElements; }

  // For compressors that remember something of a parameter beyond the residual; else null. chunk: elements, at multiples of which its pieces
  // begin where units are elements.
  virtual std::unique_ptr<CompressorMemory> make_memory(const Parameter& /*parameter*/, std::uint64_t /*chunk*/) const { return nullptr; }

  // Whether that is something of every element, which then must be the same one in every step: not as a stage.
  virtual bool remembers_elements() const { return false; }

  // Whether an entry costs it fewer bits among neighbours whose magnitudes are alike.
  virtual bool goes_by_neighbours() const { return false; }

  // Whether a residual is a sum of what was not sent. Else a failed step's mean cannot be added to it, and it means nothing without the memory.
  virtual bool residual_is_unsent() const { return true; }
  // Whether the new residual is always written beside the old one, which stays until the step is committed.
  virtual bool keeps_old_residual() const { return !residual_is_unsent(); }

  // The share of a residual that is added to the next gradient; below 1, what is not sent for long is forgotten.
  virtual float residual_decay() const { return 1; }

  // Whether values times s give something else than means times s, or what is remembered of a step has its values' magnitude: then a loss
  // scale is divided out. Else, without feedback, it passes through.
  virtual bool depends_on_scale() const { return remembers_elements(); }

  // Before the first reduction of a step. memories: of all its parameters that have any, in a step of several reductions; else of
  // those at hand; the list may be overwritten. For what is decided over all of them, from what was committed; it is told to memories, and is not part of their state.
  virtual void plan_step(std::span<CompressorMemory*> /*memories*/) const {}

  // Whether a parameter must be seen whole before its pieces travel. `steps`: its reductions so far, the same number on
  // every worker.
  virtual bool needs_preparation(std::uint64_t /*steps*/) const { return false; }
  // Precedes the parameters' messages, in their lane. Every worker prepares the same parameters, which are separate memory.
  virtual Exchange prepare(std::span<const ParameterView* const> /*parameters*/, Context& /*context*/) const { co_return; }
};

}  // namespace thinwire
