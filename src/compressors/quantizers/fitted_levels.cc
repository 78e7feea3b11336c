// Levels fitted to each chunk's values, from -1 to 1 times its largest magnitude, at random such that the expectation is exact.
//
// alq, amq: Faghri, Tabrizian, Markov, Alistarh, Roy, Ramezani-Kebrya, "Adaptive gradient quantization for data-parallel SGD", NeurIPS
// 2020. Magnitudes r are taken as normal with their mean and deviation, cut off at 0 and 1. alq: 0 and levels that coordinate descent finds;
// amq: powers of p, 1 the largest, with the p of least variance. Here of chunks and their largest magnitude, published of buckets and their
// Euclidean norm, of which the largest level would be wasted; p is the best of a fixed set, published by gradient descent.
//
// tinyscript: Fu, Hu, He, Jiang, Shao, Zhang, Cui, "Don't waste your bits! Squeeze activations and gradients for deep neural networks via
// TinyScript", ICML 2020. The values of each sign are taken as of a Weibull distribution with their mean and mean square; 0 is a level.
//
// zipml: Zhang, Li, Kara, Alistarh, Liu, Zhang, "ZipML: training linear models with end-to-end low precision, and a little bit of deep
// learning", ICML 2017, optimal quantization: the levels of least variance for the values themselves, by dynamic programming over a
// histogram, whose bins' edges are then given up for what is best next to them. Where a histogram is too coarse for so many levels, as
// mostly for 6 bits, they are mucsc's.
//
// mucsc: Cui, Su, Zhou, Pan, "Slashing communication traffic in federated learning by transmitting clustered model updates", IEEE JSAC
// 2021: centroids, and each value at random one of its two neighbours'. Centroids are moved to less variance one by one. Its biased form,
// which sends nothing of what is next to 0, is a sparsifier (bmucsc.cc).
//
// Statistics are a histogram, of 8,192 of the values if there are many; as the outermost levels are -1 and 1, nothing depends on it but the
// variance.
#include "compressors/quantizers/fitted_levels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "compressors/quantizers/level_density.h"
#include "compressors/quantizers/levels.h"
#include "compressors/shared/row.h"

namespace thinwire {
namespace {

using Room = std::array<double, std::size_t{1} << kMostFittedBits>;

// levels <- the others, without repetitions; returns how many.
std::size_t write(std::span<const double> ascending, std::span<float> levels) {
  std::ranges::transform(ascending, levels.begin(), [](double level) { return static_cast<float>(level); });
  const auto repeated = std::ranges::unique(levels.first(ascending.size()));
  return static_cast<std::size_t>(repeated.begin() - levels.begin());
}

// Magnitudes of each sign, ascending, as many of both.
std::size_t write_both_signs(std::span<const double> negative, std::span<const double> positive, std::span<float> levels) {
  Room all;
  const std::size_t count = negative.size();
  for (std::size_t i = 0; i < count; ++i) {
    all[count - 1 - i] = 0 - negative[i];
    all[count + i] = positive[i];
  }
  return write(std::span(all).first(2 * count), levels);
}

// Ascending from low to 1.
void fit(const LevelDensity& density, double low, std::span<double> levels) {
  levels.front() = low;
  levels.back() = 1;
  density.divide(levels);
  density.descend(levels);
}

LevelDensity normal_like(const LevelDensity& magnitudes) {
  const LevelDensity::Moments all = magnitudes.all();
  const double mean = all.first / all.mass;
  const double deviation = std::sqrt(std::max(all.second / all.mass - mean * mean, 1e-18));
  return LevelDensity::of_distribution([=](double r) { return std::erf((r - mean) / (deviation * std::numbers::sqrt2)); });
}

// The moments' ratio falls as the shape k rises: its logarithm is halved to where it fits.
LevelDensity weibull_like(const LevelDensity& magnitudes) {
  const LevelDensity::Moments all = magnitudes.all();
  if (!(all.mass > 0)) return magnitudes;
  const double mean = all.first / all.mass, ratio = std::log(all.second / all.mass / (mean * mean));
  double low = std::log(0.1), high = std::log(10);
  for (int i = 0; i < 24; ++i) {
    const double middle = 0.5 * (low + high), inverse = std::exp(-middle);
    const double gamma = std::tgamma(1 + inverse);  // and not lgamma(), which writes a global: its argument's sign
    const bool is_less = std::log(std::tgamma(1 + 2 * inverse) / (gamma * gamma)) < ratio;
    (is_less ? high : low) = middle;
  }
  const double shape = std::exp(0.5 * (low + high)), scale = mean / std::tgamma(1 + 1 / shape);
  return LevelDensity::of_distribution([=](double r) { return -std::expm1(-std::pow(r / scale, shape)); });
}

std::size_t fit_alq(std::span<const float> values, std::span<float> levels) {
  Room room;
  const auto positive = std::span(room).first(levels.size() / 2);
  fit(normal_like(LevelDensity::of(values).magnitudes()), 0, positive);
  return write_both_signs(positive, positive, levels);
}

std::size_t fit_amq(std::span<const float> values, std::span<float> levels) {
  constexpr int kTried = 96;  // least levels from .9 down to 2^-27, evenly by their logarithms
  const LevelDensity normal = normal_like(LevelDensity::of(values).magnitudes());
  Room room, best_room;
  const auto powers = std::span(room).first(levels.size() / 2), best = std::span(best_room).first(powers.size());
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTried; ++i) {
    const double smallest = 0.9 * std::exp2(-27.0 * i / (kTried - 1)), p = std::pow(smallest, 1.0 / static_cast<double>(powers.size() - 1));
    powers.back() = 1;
    for (std::size_t j = powers.size() - 1; j > 0; --j) powers[j - 1] = powers[j] * p;
    const double variance = normal.variance(powers) + normal.variance(-powers.front(), powers.front());
    if (variance >= least) continue;
    least = variance;
    std::ranges::copy(powers, best.begin());
  }
  return write_both_signs(best, best, levels);
}

std::size_t fit_tinyscript(std::span<const float> values, std::span<float> levels) {
  const LevelDensity density = LevelDensity::of(values);
  Room negative_room, positive_room;
  const auto negative = std::span(negative_room).first(levels.size() / 2), positive = std::span(positive_room).first(negative.size());
  fit(weibull_like(density.negative()), 0, negative);
  fit(weibull_like(density.positive()), 0, positive);
  return write_both_signs(negative, positive, levels);
}

}  // namespace

std::size_t fit_mucsc(std::span<const float> values, std::span<float> levels) {
  Room room;
  const auto all = std::span(room).first(levels.size());
  fit(LevelDensity::of(values), -1, all);
  return write(all, levels);
}

namespace {

std::size_t fit_zipml(std::span<const float> values, std::span<float> levels) {
  const LevelDensity density = LevelDensity::of(values);
  Room room;
  const auto all = std::span(room).first(levels.size());
  if (!density.choose(all)) return fit_mucsc(values, levels);
  density.descend(all);
  return write(all, levels);
}

struct Kind {
  const char* name;
  std::uint8_t wire_id;
  LevelFit fit;
};
constexpr Kind kAlq{"alq", 65, fit_alq}, kAmq{"amq", 66, fit_amq}, kZipml{"zipml", 67, fit_zipml},
    kTinyscript{"tinyscript", 68, fit_tinyscript}, kMucsc{"mucsc", 69, fit_mucsc};

template <const Kind& kKind>
MadeCompressor make(const SpecValues& values, MadeCompressor /*next*/) {
  return std::make_unique<Levels>(Levels::Options{.name = kKind.name,
                                                  .wire_id = kKind.wire_id,
                                                  .levels = std::vector<float>(std::size_t{1} << values.integer("bits"), 1.0f),
                                                  .fit = kKind.fit,
                                                  .rounding = Rounding::kRandom,
                                                  .coding = coding_of(values),
                                                  .reduce = reduce_of(values.choice("reduce"))});
}

template <const Kind& kKind>
Row row_of(const char* description, const char* reference) {
  Row row;
  row.info = {.name = kKind.name,
              .family = Family::kLevels,
              .description = description,
              .bits = "2 to 6",
              .wire_id = kKind.wire_id,
              .wire_version = Levels::kWireVersion,
              .aggregation = Aggregation::kGather,
              .unbiased = true,
              .reference = reference};
  row.info.sizes = {"bits"};
  row.info.parameters = {whole_number("bits", "4", 2, kMostFittedBits, "bits an entry; a chunk sends up to 2^bits levels of its own"), coding(), reduce()};
  row.make = make<kKind>;
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.bits = bits_sent(static_cast<double>(values.integer("bits")), values.choice("reduce"));
    claims.lost = 1;  // two bits
    return claims;
  };
  return row;
}

}  // namespace

Row alq_row() {
  return row_of<kAlq>("ALQ, levels fitted by descent: best for a normal distribution of magnitudes like the chunk's, at random",
                      "Faghri et al., NeurIPS 2020, arXiv 2010.12460");
}

Row amq_row() {
  return row_of<kAmq>("AMQ, powers of a fitted base: best for a normal distribution of magnitudes like the chunk's, at random",
                      "Faghri et al., NeurIPS 2020, arXiv 2010.12460");
}

Row mucsc_row() {
  return row_of<kMucsc>("MUCSC, soft clusters: centroids fitted to the chunk's values, one of two neighbours at random",
                        "Cui et al., IEEE JSAC 2021, arXiv 2105.04153");
}

Row tinyscript_row() {
  return row_of<kTinyscript>("TinyScript, levels for Weibull: best for a Weibull distribution like the chunk's values of each sign, at "
                             "random",
                             "Fu et al., ICML 2020");
}

Row zipml_row() {
  return row_of<kZipml>("ZipML's optimal levels: of least variance for the chunk's values, by dynamic programming, at random",
                        "Zhang et al., ICML 2017, arXiv 1611.05402");
}

}  // namespace thinwire
