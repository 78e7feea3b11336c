// What a trellis would cost casq:rate='s encoder: the time of a search by Viterbi's algorithm (trellis.cc), beside that of the whole encoder as it
// is, in one run on one core, at equal bits:
//
//   build/bench/trellis_rate [--runs 9] [--bits 0.25,1,4] gradient.npy ...
//
// Bits are those of an ideal coder that has a table of its own for each state, as bench/rate_variants.py has them, without those of classes
// (a few hundredths); errors |g - g'|^2 / |g|^2 are the trellis's and the encoder's. Levels' prices come from three searches before. GB of float32 a
// second, also as a share of the rate of only reading memory: medians of the time that this thread has had of a core. Of each file the whole groups of its first row.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/rate_measuring.h"
#include "bench/trellis.h"

namespace {

using namespace thinwire::bench;
using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kGroup = kTrellisGroup * kTrellisBlock;
constexpr int kSearches = 4;
constexpr double kPrice = 0.15;  // of a bit, in squares of a step: rate_variants.py tries four, of which this is mostly the best

// Of blocks, by their mean magnitudes in half octaves.
Bytes classes_of(const Floats& values, float step) {
  Bytes classes;
  for (std::size_t block = 0; block < values.size(); block += kTrellisBlock) {
    double sum = 0;
    for (std::size_t i = block; i < block + kTrellisBlock; ++i) sum += std::fabs(values[i]);
    const double octave = std::log2(std::max(sum / kTrellisBlock / step, 0x1p-6));
    classes.push_back(static_cast<std::uint8_t>(std::min(static_cast<double>(kClasses - 1), std::round(2 * octave) + 12)));
  }
  return classes;
}

struct Counts {
  double all = 0.5, others = 0.25, excess = 0.0125;
  double bits_of_zero() const { return -std::log2(1 - others / all); }
  double bits_of_first() const { return -std::log2(others / all) + std::log2(1 + excess / others) + 1; }  // and the sign
  double bits_of_each() const { return std::log2((others + excess) / excess); }
};

struct Searched {
  std::vector<ClassPrices> prices;
  double bits = 0, error = 0;  // an entry, and as a share
};

// Of a gradient, with prices that fit its levels.
Searched search(const Floats& gradient, float step) {
  const Bytes classes = classes_of(gradient, step);
  const std::size_t n = gradient.size();
  std::vector<std::int16_t> levels(n);
  Searched searched;
  searched.prices.assign(kClasses, ClassPrices{});
  for (ClassPrices& of_class : searched.prices) of_class.fill({.zero = static_cast<float>(kPrice), .first = static_cast<float>(2 * kPrice), .each = static_cast<float>(kPrice)});
  for (int pass = 0; pass < kSearches; ++pass) {
    choose_levels(gradient, step, classes, searched.prices, levels);
    std::vector<std::array<Counts, kStates>> counts(kClasses);
    struct Decoded {
      double sum = 0, count = 0;
    };
    std::map<std::pair<std::size_t, int>, Decoded> more;  // than a level says, by class and state, and level
    double left = 0, all = 0;
    const auto visit = [&](const auto& see) {
      for (std::size_t e = 0, state = 0; e < n; ++e) {
        if (e % kTrellisBlock == 0) state = 0;
        const int level = levels[trellis_index(e / kTrellisBlock, e % kTrellisBlock)];
        see(classes[e / kTrellisBlock], state, level, std::fabs(double{gradient[e]}) / step);
        state = static_cast<std::size_t>(trellis_next(static_cast<int>(state), level));
      }
    };
    visit([&](std::size_t of_class, std::size_t state, int level, double magnitude) {
      Counts& own = counts[of_class][state];
      own.all += 1;
      own.others += level > 0;
      own.excess += std::max(level - 1, 0);
      Decoded& decoded = more[{of_class * kStates + state, std::min(level, 3)}];
      decoded.sum += magnitude - trellis_multiple(static_cast<int>(state), level);
      decoded.count += 1;
    });
    searched.bits = 0;
    visit([&](std::size_t of_class, std::size_t state, int level, double magnitude) {
      const Counts& own = counts[of_class][state];
      const Decoded& decoded = more[{of_class * kStates + state, std::min(level, 3)}];
      const double value = level == 0 ? 0 : trellis_multiple(static_cast<int>(state), level) + decoded.sum / decoded.count;
      searched.bits += level == 0 ? own.bits_of_zero() : own.bits_of_first() + (level - 1) * own.bits_of_each();
      left += (magnitude - value) * (magnitude - value);
      all += magnitude * magnitude;
    });
    searched.bits /= static_cast<double>(n);
    searched.error = left / all;
    if (pass + 1 == kSearches) break;
    for (std::size_t c = 0; c < kClasses; ++c)
      for (std::size_t s = 0; s < kStates; ++s) {
        const Counts& own = counts[c][s];
        searched.prices[c][s] = {.zero = static_cast<float>(kPrice * own.bits_of_zero()),
                                 .first = static_cast<float>(kPrice * (own.bits_of_first() - own.bits_of_each())),
                                 .each = static_cast<float>(kPrice * own.bits_of_each())};
      }
  }
  return searched;
}

void report(const Floats& gradient, double bits, int runs) {
  float low = 1e-12F, high = 1e6F;
  for (int i = 0; i < 24; ++i) {
    const float step = std::sqrt(low * high);
    (search(gradient, step).bits > bits ? low : high) = step;
  }
  const Searched searched = search(gradient, high);
  Codec codec(kRepeated);
  const float own_step = step_for(gradient, codec, bits);
  Floats residual(gradient.size());
  codec.encode(gradient, own_step, &residual);
  std::printf("%7.3f bits, error %9.3g (encoder's %9.3g)", searched.bits, searched.error, energy(residual) / energy(gradient));
  const Floats values = repeated(gradient);
  const Bytes classes = classes_of(values, high);
  std::vector<std::int16_t> levels(kRepeated);
  std::vector<double> read, encode, choose;
  for (int run = 0; run < runs; ++run) {
    read.push_back(read_memory(values));
    encode.push_back(seconds_of([&] { codec.encode(values, own_step, nullptr); }));
    choose.push_back(seconds_of([&] { choose_levels(values, high, classes, searched.prices, levels); }));
  }
  std::printf("; GB/s: read %5.1f", 4e-9 * kRepeated / median(read));
  print_rate("encode", encode, read);
  print_rate("search", choose, read);
  std::printf(": %.2f of the encoder's time\n", median(choose) / median(encode));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = read_arguments(argc, argv);
  for (const std::string& file : arguments.files) {
    Floats gradient = read_gradient(file);
    gradient.resize(gradient.size() / kGroup * kGroup);
    std::printf("%s, %zu entries\n", file.c_str(), gradient.size());
    for (const double bits : arguments.rates) report(gradient, bits, arguments.runs);
  }
}
