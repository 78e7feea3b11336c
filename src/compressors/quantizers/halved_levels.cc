// NUQSGD: levels that are halved towards 0, times a bucket's Euclidean norm, at random such that the expectation is exact.
// Source: Ramezani-Kebrya et al., "NUQSGD: provably communication-efficient data-parallel SGD via nonuniform quantization", JMLR 2021:
// levels 0, 2^-s, ..., 1/2, 1 with s = 2^(bits-1) - 2.
//
// natural: the same with the largest magnitude as norm, which with 8 bits has every power of two that counts. Source: Horvath et al.,
// "Natural compression for distributed deep learning", MSML 2022: natural dithering; its 9 bits of an entry keep the exponents of floats.
#include <algorithm>
#include <cmath>

#include "compressors/quantizers/levels.h"
#include "compressors/shared/row.h"

namespace thinwire {
namespace {

int of_each_sign(int bits) { return (1 << (bits - 1)) - 1; }

std::vector<float> halved_levels(int bits) {
  const int count = of_each_sign(bits);
  std::vector<float> levels(1, 0.0f);
  for (int i = 0; i < count; ++i) {
    const float level = std::ldexp(1.0f, i + 1 - count);
    levels.push_back(level);
    levels.insert(levels.begin(), -level);
  }
  return levels;
}

struct Kind {
  const char* name;
  std::uint8_t wire_id;
  Norm norm;
};
constexpr Kind kNuqsgd{"nuqsgd", 50, Norm::kEuclidean}, kNatural{"natural", 51, Norm::kLargest};

template <const Kind& kKind>
MadeCompressor make(const SpecValues& values, MadeCompressor /*next*/) {
  const int bits = static_cast<int>(values.integer("bits")), count = of_each_sign(bits);
  return std::make_unique<Levels>(Levels::Options{.name = kKind.name,
                                                  .wire_id = kKind.wire_id,
                                                  .levels = halved_levels(bits),
                                                  .floats = kernels::FewBitFloats{.mantissa_bits = 0, .least_exponent = 1 - count, .count = count},
                                                  .norm = kKind.norm,
                                                  .bucket = static_cast<std::size_t>(values.integer("bucket")),
                                                  .rounding = Rounding::kRandom,
                                                  .coding = coding_of(values),
                                                  .reduce = reduce_of(values.choice("reduce"))});
}

Claims claims(const SpecValues& values, Claims claims) {
  const double bits = static_cast<double>(values.integer("bits")) + 32 / static_cast<double>(values.integer("bucket"));
  claims.bits = bits_sent(bits, values.choice("reduce"));
  claims.lost = 5;  // a norm of many values, and few levels
  return claims;
}

Row row_of(const Kind& kind, const char* description, const char* reference) {
  Row row;
  row.info = {.name = kind.name,
              .family = Family::kLevels,
              .description = description,
              .bits = "2 to 8",
              .wire_id = kind.wire_id,
              .wire_version = Levels::kWireVersion,
              .aggregation = Aggregation::kGather,
              .unbiased = true,
              .reference = reference};
  row.claims = claims;
  return row;
}

SpecParameter bits(const char* default_value) {
  return whole_number("bits", default_value, 2, 8, "bits an entry; 2^(bits-1) - 1 levels of each sign, and 0");
}
SpecParameter bucket(const char* default_value) {
  return whole_number("bucket", default_value, 1, kChunkElements, "entries that share a norm");
}

}  // namespace

Row nuqsgd_row() {
  Row row = row_of(kNuqsgd, "NUQSGD: levels halved towards 0, times the bucket's Euclidean norm, at random",
                   "Ramezani-Kebrya et al., JMLR 2021, arXiv 1908.06077");
  row.info.sizes = {"bits"};
  row.info.parameters = {bits("4"), bucket("512"), coding(), reduce()};
  row.make = make<kNuqsgd>;
  row.trials.further = {"bits=3,bucket=77,reduce=scatter"};
  return row;
}

Row natural_row() {
  Row row = row_of(kNatural, "natural dithering: levels halved from the chunk's largest magnitude on, at random",
                   "Horvath et al., MSML 2022, arXiv 1905.10988");
  row.info.sizes = {"bits"};
  row.info.parameters = {bits("8"), bucket("32768"), coding(), reduce()};
  row.make = make<kNatural>;
  row.trials.further = {"bits=5,bucket=100"};
  return row;
}

}  // namespace thinwire
