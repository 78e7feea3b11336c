// GradiVeQ: gradients projected on principal components that all workers share, so that they add up inside all-reduce.
//
// Source: Yu, Lin, Narra, Li, Li, Kim, Schwing, Annavaram, Avestimehr: "GradiVeQ: vector quantization for bandwidth-efficient
// gradient aggregation in distributed CNN training", NeurIPS 2018, arXiv 1811.03617. Symbols: slices of K entries (`slice`,
// `axis`), d components (`dims`, `ratio`, `energy`), L_t learning steps (`learn`), L_c compressing steps (`use`), U, mu.
//
// A parameter goes through cycles of `learn` + `lag` + `use` steps.
// 1. learn: values travel uncompressed; the parameter's owner adds up the moments of the aggregated gradient's slices.
//    Owners are spread over the workers by the parameters' names.
// 2. lag: values still travel uncompressed, while the owner finds the d leading eigenvectors U of the covariance, in a
//    thread of its own. Before the first step of 3 all workers get U and mu from the owner.
// 3. use: y = U'(slice - mu) of every slice; sum(y); the mean is U y / W + mu. y of the sum is the sum of y.
//
// Wire: 32 n in 1 and 2, 32 d ceil(n/K) in 3, and once a cycle 32 (d K + K + d) for U, mu and the deviations. With feedback
// 32 bits a message and 32 a chunk more say what is finite and used. Rounds: one sum a step; before 3 two of max and a broadcast from
// each owner (basis_agreement.h). A stage that follows carries y instead, and with feedback values in 1 and 2. So does, with `rate` R, a transform code (bit_allocation.h, transform_code.h):
// at most R n bits in 3, a max of norms and a sum of words; the basis then has 2 d numbers more, bits and steps.
//
// What a fixed U cannot express never gets through while it is in use. feedback=off forgets it, as published; on keeps it
// in the residual, which goes out with the first learning step; flush sends it in equal parts over all learning steps. With ratio=1 there is nothing of it;
// with casq:rate= behind it that is no worse in bits, as what is small costs little.
//
// Memory passes: encode reads the values once, decode writes the mean once, each with 2 n d flops; with feedback decode reads the
// values once more, and with feedback and a code or a stage has 2 n d flops more, for this worker's own part.
#pragma once

#include <memory>

#include "compressors/shared/compressor.h"
#include "compressors/gradiveq/gradiveq_cycle.h"

namespace thinwire {

class Gradiveq : public Compressor {
 public:
  static constexpr std::uint8_t kWireId = 18;

  // flush: residuals go out over the learning steps. next: what carries the coefficients; null: a sum of floats.
  Gradiveq(const GradiveqOptions& options, bool flush, std::unique_ptr<const Compressor> next);

  Exchange exchange(Work& work, Context& context) const override;
  Unit unit() const override { return Unit::kSlice; }
  std::uint64_t slice_elements(const Parameter& parameter) const override;
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t chunk) const override;
  void plan_step(std::span<CompressorMemory*> memories) const override;
  bool depends_on_scale() const override { return true; }  // mu and what bits are shared by are of the learning steps' magnitude
  bool needs_preparation(std::uint64_t steps) const override { return options_.schedule.swaps(steps); }
  Exchange prepare(std::span<const ParameterView* const> parameters, Context& context) const override;

 private:
  GradiveqOptions options_;
  bool flush_;
  std::unique_ptr<const Compressor> next_;
  mutable Background background_;
};

}  // namespace thinwire
