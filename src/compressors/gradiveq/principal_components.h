// Principal components of a parameter's slices: learnt from gradients as they come, none of which is kept.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "compressors/gradiveq/bit_allocation.h"
#include "compressors/gradiveq/slices.h"
#include "compressors/gradiveq/transform_code.h"
#include "core/bytes.h"

namespace thinwire {

struct BasisKind {
  Axis axis = Axis::kFilter;
  std::size_t dims = 0;     // 0: the parameter travels uncompressed
  bool by_channel = false;  // the order in which a stage has coefficients: channel by channel, or component by component
};

// What slices are projected on. `dims` rows of K entries, orthonormal, and the slices' mean.
struct Basis : BasisKind {
  Slices slices;
  std::vector<float> components;  // dims x K
  std::vector<float> mean;        // K
  std::vector<float> deviations;  // dims: of the mean gradient's coefficients, as learnt
  std::optional<TransformCode> code;  // none: coefficients travel as floats, or as a stage carries them

  // Of a basis that is in use, made once it is whole.
  kernels::PackedMatrix rows;     // components: dims x K
  kernels::PackedMatrix columns;  // their transpose
  std::vector<float> offsets;     // dims: components times mean
  double largest_mean = 0;        // magnitude
  // What is decoded is no larger than largest_mean and `reach` times the largest coefficient, or with a code `reach_of_levels` times the
  // largest norm.
  double reach = 0, reach_of_levels = 0;
};

// How many components are kept: as many as get bits if `rate` is not 0; else `dims` if it is not 0; else as many as hold the
// share `energy` of the variance if that is not 0; else K / ratio. Where ways to cut compete, rate and ratio include the basis.
struct BasisSize {
  double rate = 0;     // bits an entry of the parameter, everything counted that a step with this basis sends
  int world_size = 1;  // whose levels add up
  std::size_t dims = 0;
  double energy = 0;
  double ratio = 16;
  double uses = 1;  // steps that a basis serves, over which its own length is spread
  double sent = 1;  // floats that a coefficient takes, at most: a stage that carries them makes it less
  bool is_ordered = false;  // for a stage that goes by neighbours
};

// First and second moments of one way to cut a parameter.
class Moments {
 public:
  Moments(const Parameter& parameter, Axis axis, std::size_t longest);

  void add(std::span<const float> gradient);
  // Null if nothing, or nothing finite, was added, or if it saves nothing. `kept` is the share of the variance.
  struct Found {
    Basis basis;
    double kept = 0;
  };
  std::optional<Found> find(const BasisSize& size, bool competes) const;

  std::size_t saved_bytes() const;
  void save(ByteWriter& writer) const;
  void load(ByteReader& reader);

 private:
  std::size_t dims(std::span<const float> variances, const BasisSize& size, bool competes) const;
  std::optional<BitAllocation> bits(std::span<const float> variances, const BasisSize& size, bool competes) const;
  bool is_shorter_by_channel(std::span<const float> variances) const;

  Axis axis_;
  Slices slices_;
  std::uint64_t elements_;
  double count_ = 0;
  std::vector<double> sum_;
  std::vector<float> gram_;  // the upper triangle
  std::vector<double> channels_;  // energies of entries, channel by channel
};

// Cuts that are looked at: one, or for an automatic choice those that keep a row of the parameter together.
std::vector<Axis> axes_for(const Parameter& parameter, std::optional<Axis> axis);

// The cut that keeps most at equal cost, its basis included. Null as above.
std::optional<Basis> best_basis(std::span<const Moments> moments, const BasisSize& size);

}  // namespace thinwire
