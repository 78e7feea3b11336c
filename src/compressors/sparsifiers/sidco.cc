// SIDCo: the threshold that a given share of a chunk's magnitudes is likely not to be below, by fitting an exponential distribution to
// them, and another one to what is beyond that, and so on; error feedback keeps the rest.
// Source: Abdelmoniem, Elzanaty, Alouini, Canini: "An efficient statistical-based gradient compression technique for distributed training
// systems", MLSys 2021, section 2.4 and algorithm 1 (SIDCo-E). Symbols: k = ceil(density n) of a chunk's n entries are wanted. With k_0 = n
// and eta_0 = 0, stage m finds beta, the mean of what the k_(m-1) magnitudes from eta_(m-1) on are beyond it, and
//   eta_m = eta_(m-1) + beta ln(1 / delta_m), delta_m = max(1/4, k / k_(m-1)).
// Published for layers, with a number of stages that follows from what earlier steps sent too many or too few. Here k_m are counted, which
// takes no further pass, and stages follow until a quarter of them would be too few. No threshold is above the
// largest magnitude. Where fewer than k/2 or more than 2 k entries would be sent, the k largest are found as topk does.
//
// Memory passes: those of threshold, and one in the cache for each stage.
#include <algorithm>
#include <cmath>
#include <limits>

#include "compressors/shared/row.h"
#include "compressors/sparsifiers/chosen.h"
#include "compressors/sparsifiers/density.h"
#include "kernels/selecting.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 44;
constexpr double kStage = 0.25;  // the share of magnitudes that all stages but the last leave
constexpr int kMostStages = 8;

class Sidco : public ChosenEntries {
 public:
  Sidco(double density, const Options& options) : ChosenEntries(options), density_(density) {}

 private:
  std::size_t choose(std::span<const float> values, const kernels::Magnitudes& magnitudes, std::span<std::uint16_t> room) const override {
    const std::size_t wanted = kept_entries(density_, values.size());
    const float threshold = fitted(values, magnitudes.largest, wanted);
    const std::size_t count = kernels::select_from(values, std::max(threshold, std::numeric_limits<float>::denorm_min()), room);  // no zeros
    if (count >= wanted / 2 && count <= 2 * wanted) return count;
    return largest(values, wanted, room);
  }

  static float fitted(std::span<const float> values, float largest, std::size_t wanted) {
    float threshold = 0;
    for (int stage = 0; stage < kMostStages; ++stage) {
      const kernels::Split split = kernels::split_magnitudes(values, threshold);
      if (split.from <= wanted) break;
      const auto from = static_cast<double>(split.from);
      const double share = static_cast<double>(wanted) / from, beyond = -split.excess / from * std::log(std::max(kStage, share));
      threshold = static_cast<float>(std::min(static_cast<double>(largest), static_cast<double>(threshold) + beyond));
      if (share >= kStage) break;
    }
    return threshold;
  }

  // Zeros are left out.
  static std::size_t largest(std::span<const float> values, std::size_t count, std::span<std::uint16_t> room) {
    const auto places = room.last(count);
    kernels::select_largest(values, places, room.first(kernels::selecting_room(values.size())));
    const auto end = std::ranges::copy_if(places, room.begin(), [&](std::uint16_t place) { return values[place] != 0; }).out;
    return static_cast<std::size_t>(end - room.begin());
  }

  double density_;
};

}  // namespace

Row sidco_row() {
  Row row;
  row.info = {.name = "sidco",
              .family = Family::kSparsifiers,
              .description = "SIDCo: magnitudes from a threshold on, which is found by fitting exponential distributions in stages, as float32 "
                             "or bfloat16, with their places",
              .bits = "0.41 at 1 %",
              .wire_id = kWireId,
              .wire_version = ChosenEntries::kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "Abdelmoniem, Elzanaty, Alouini, Canini, MLSys 2021, arXiv 2101.10761"};
  row.info.sizes = {"density", "values=bf16,density"};
  row.info.parameters = {density_parameter(), values_parameter(), feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    const double density = values.real("density");
    return std::make_unique<Sidco>(density, ChosenEntries::Options{.name = "sidco",
                                                                   .wire_id = kWireId,
                                                                   .first_share = std::min(1.0, 1.25 * density),
                                                                   .values = sent_as(values),
                                                                   .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.real("density");
    claims.bits = bits_sent(entry_bits(std::min(1.0, 2 * density), sent_as(values)), values.choice("reduce"));
    claims.lost = 1 - density / 2;
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.1,values=bf16,reduce=scatter", "density=1,values=bf16", "density=0.005",
                        "density=1,reduce=scatter"};
  return row;
}

}  // namespace thinwire
