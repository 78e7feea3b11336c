// GradiVeQ without learning phases: components that follow the gradient, one warm subspace iteration a step (refresh=every).
//
// A parameter is a matrix X of N slices of K entries. All workers have d orthonormal components U, and q probes Q beside them.
// 1. sum(U X', Q X'): the coefficients Y of the components, and S, those of the probes.
// 2. P = S orthonormalised, the same on every worker. R = X - Y'U is what components do not hold; sum(P R) = Z.
// 3. The mean is (Y'U + P'Z) / W: what the components hold, and the probes' step of subspace iteration on the rest.
// 4. From what all have decoded, so that nothing is sent: the principal components of the decoded mean and of those before it,
//    each step's weighted with 0.95 of the next one's, within the span of U and Z. The d leading ones are the next U, those
//    that are left over the next probes.
//
// A parameter's first step with any gradient travels uncompressed; U begins in the span of its slices. Both sums are linear, so payloads add up. With feedback
// what was not sent is found by the probes of later steps: no direction is out of reach. PowerSGD (Vogels et al., NeurIPS 2019) is
// the case without components.
//
// A stage that follows carries Y and S, and then Z. What it loses of a worker's own stays in R, and so reaches Z and the residual.
//
// Wire: 32 n in the first step, then 32 ((d + q) N + q K), in two sums, or as the stage has it; with feedback 32 a message and 32 a
// parameter more. A
// parameter is one piece.
#pragma once

#include <memory>
#include <vector>

#include "compressors/shared/compressor.h"
#include "compressors/gradiveq/slices.h"

namespace thinwire {

struct FollowOptions {
  Axis axis = Axis::kSquare;
  std::size_t slice = 4096;
  std::size_t dims = 0;    // d; 0: what probes leave of ratio
  double ratio = 16;       // entries to each coefficient that a step sends
  std::size_t probes = 0;  // q; 0: as many as dims, or else as many as ratio allows
  std::uint64_t smallest = 4096;
};

class GradiveqFollow : public Compressor {
 public:
  // next: what carries the coefficients, and remembers nothing; null: a sum of floats.
  GradiveqFollow(const FollowOptions& options, std::unique_ptr<const Compressor> next);

  Exchange exchange(Work& work, Context& context) const override;
  Unit unit() const override { return Unit::kParameter; }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t chunk) const override;
  // Whether workers have the same OpenBLAS, with the same kernels, once.
  bool needs_preparation(std::uint64_t steps) const override { return steps == 0; }
  Exchange prepare(std::span<const ParameterView* const> parameters, Context& context) const override;

 private:
  FollowOptions options_;
  std::unique_ptr<const Compressor> next_;
};

}  // namespace thinwire
