// Numbers of a few bits, as processors have them, times a unit that neighbouring entries share: int, fp8 and mxfp4. Rounded to the
// nearest; error feedback keeps the rest.
// Sources: Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016; Micikevicius et al., "FP8 formats for deep
// learning", 2022 (e4m3 up to 448, e5m2 up to 57,344); "OCP Microscaling Formats (MX) v1.0", 2023 (mxfp4: e2m1 up to 6, 32 entries share a
// power of two).
#include <algorithm>
#include <cmath>

#include "compressors/quantizers/levels.h"
#include "compressors/shared/row.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kInt = 53, kFp8 = 54, kMxfp4 = 55;

using kernels::FewBitFloats;

// All of them, ascending.
std::vector<float> levels_of(const FewBitFloats& floats) {
  const int steps = 1 << floats.mantissa_bits;
  std::vector<float> levels(static_cast<std::size_t>(2 * floats.count + 1));
  for (int number = 1; number <= floats.count; ++number) {
    const int octave = std::max(number / steps - 1, 0);
    const int multiple = number - octave * steps;
    const float level = std::ldexp(static_cast<float>(multiple), floats.least_exponent - floats.mantissa_bits + octave);
    levels[static_cast<std::size_t>(floats.count + number)] = level;
    levels[static_cast<std::size_t>(floats.count - number)] = -level;
  }
  return levels;
}

constexpr FewBitFloats kE4m3{3, -6, 126}, kE5m2{2, -14, 123}, kE2m1{1, 0, 7};  // up to 448, 57,344 and 6

MadeCompressor made(const char* name, std::uint8_t wire_id, const FewBitFloats& floats, Norm norm, const SpecValues& values) {
  return std::make_unique<Levels>(Levels::Options{.name = name,
                                                  .wire_id = wire_id,
                                                  .levels = levels_of(floats),
                                                  .floats = floats,
                                                  .norm = norm,
                                                  .bucket = static_cast<std::size_t>(values.integer("bucket")),
                                                  .coding = coding_of(values),
                                                  .reduce = reduce_of(values.choice("reduce"))});
}

Row row_of(const char* name, std::uint8_t wire_id, const char* description, const char* bits, bool contractive, const char* reference) {
  Row row;
  row.info = {.name = name,
              .family = Family::kLevels,
              .description = description,
              .bits = bits,
              .wire_id = wire_id,
              .wire_version = Levels::kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = contractive,
              .reference = reference};
  return row;
}

template <int kUnitBits>
Claims claims(const SpecValues& values, Claims claims, double bits) {
  bits += kUnitBits / static_cast<double>(values.integer("bucket"));
  claims.bits = bits_sent(bits, values.choice("reduce"));
  return claims;
}

SpecParameter bucket(const char* default_value) {
  return whole_number("bucket", default_value, 1, kChunkElements, "entries that share a unit");
}

}  // namespace

Row int_row() {
  Row row = row_of("int", kInt, "whole numbers: up to 2^(bits-1) - 1, times a unit of the bucket's", "2 to 8", true,
                   "Dettmers, ICLR 2016, arXiv 1511.04561");
  row.info.sizes = {"bits"};
  row.info.parameters = {whole_number("bits", "8", 2, 8, "bits an entry"), bucket("512"), feedback("on"), coding(), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return made("int", kInt, kernels::whole_numbers((1 << (values.integer("bits") - 1)) - 1), Norm::kLargest, values);
  };
  row.claims = [](const SpecValues& values, Claims usual) {
    return claims<32>(values, usual, static_cast<double>(values.integer("bits")));
  };
  row.trials.further = {"bits=4,bucket=32", "bits=3,bucket=50,reduce=scatter"};
  return row;
}

Row fp8_row() {
  Row row = row_of("fp8", kFp8, "FP8: floats of 8 bits, times a unit of the bucket's", "8", true,
                   "Micikevicius et al., 2022, arXiv 2209.05433");
  row.info.sizes = {"format"};
  row.info.parameters = {choice("format", {"e4m3", "e5m2"}, "bits of exponent and of mantissa"), bucket("32768"), feedback("on"), coding(), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    const bool e4m3 = values.choice("format") == "e4m3";
    return made("fp8", kFp8, e4m3 ? kE4m3 : kE5m2, Norm::kLargest, values);
  };
  row.claims = [](const SpecValues& values, Claims usual) { return claims<32>(values, usual, 8); };
  row.trials.further = {"bucket=128"};
  return row;
}

Row mxfp4_row() {
  // What is smaller than the least power of two becomes 0, so that nothing is claimed.
  Row row = row_of("mxfp4", kMxfp4, "MXFP4: floats of 4 bits, times a power of two that 32 entries share", "4.25", false,
                   "OCP Microscaling Formats (MX) v1.0, 2023");
  row.info.parameters = {bucket("32"), feedback("on"), coding(), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return made("mxfp4", kMxfp4, kE2m1, Norm::kPowerOfTwo, values);
  };
  row.claims = [](const SpecValues& values, Claims usual) { return claims<8>(values, usual, 4); };
  return row;
}

}  // namespace thinwire
