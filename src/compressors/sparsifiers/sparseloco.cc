// SparseLoCo: of every 4,096 entries the 64 of the largest magnitudes, as two bits each, with places in hardly more bits than any code
// needs; error feedback keeps the rest.
// Source: Sarfi et al.: "Communication efficient LLM pre-training with SparseLoCo", 2025: top-k in chunks, values of two bits, error
// feedback, once for many local steps; here of any gradient. Published chunks are squares of matrices, here runs of 4,096 entries, the last
// one of a chunk of the grid perhaps shorter, with k = ceil(n / 64) of its n. Published residuals decay (`decay`), here only where that is
// asked for, as what is forgotten is lost. The two bits are here a sign, and which of two magnitudes it is: the means of those above and not
// above the mean of all k, bfloat16.
//
// Places: the lower four bits of each as they are; the upper ones, h_1 <= h_2 <= ..., as the number of the combination h_j + j - 1 among
// all (combinations.h). 64 of 4,096 so take 7.55 bits each, of 7.36 that no code could do without; packed fields of 12 bits are usual.
//
// A code is one string of bits, least significant first, zeros behind the last one: of each run both magnitudes, the lower one first, 16
// bits each; of each entry the lower four bits of its place, whether it is negative, and whether it is of the larger magnitude; the
// combination's number.
//
// Memory passes: encode reads gradient and residual once, and looks at each chunk once more in the cache; decode writes zeros and k sums.
#include <algorithm>
#include <array>
#include <cmath>

#include "compressors/shared/reduce_coded.h"
#include "compressors/shared/row.h"
#include "compressors/sparsifiers/combinations.h"
#include "compressors/sparsifiers/entries.h"
#include "core/scratch.h"
#include "kernels/bit_string.h"
#include "kernels/half.h"
#include "kernels/selecting.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 45, kWireVersion = 1;
constexpr std::size_t kRun = 4096, kMostKept = Combinations::kMostTaken;
constexpr unsigned kLowerBits = 4, kEntryBits = kLowerBits + 2, kMagnitudesBits = 32;
constexpr std::size_t kBeyond = 9;  // bytes behind a string of bits that its readers and writers touch

struct Run {
  std::size_t elements;
  std::size_t kept() const { return (elements * kMostKept + kRun - 1) / kRun; }
  Combinations upper_parts() const { return {kept(), kept() + ((elements - 1) >> kLowerBits)}; }
  std::size_t bits() const { return kMagnitudesBits + kept() * kEntryBits + upper_parts().bits(); }
};

// visit(first, run)
template <class Visit>
void for_each_run(std::size_t elements, const Visit& visit) {
  for (std::size_t first = 0; first < elements; first += kRun) visit(first, Run{std::min(kRun, elements - first)});
}

std::size_t code_bytes(std::size_t elements) {
  std::size_t bits = 0;
  for_each_run(elements, [&](std::size_t, Run run) { bits += run.bits(); });
  return (bits + 7) / 8;
}

struct Entry {
  std::uint16_t place;
  float value;
};

// Reads one run after another.
class RunReader {
 public:
  explicit RunReader(std::span<const std::byte> code) {
    std::ranges::copy(code, padded_.begin());
    bits_ = 8 * code.size();
  }

  // Fills entries, of which there are run.kept(). Throws PayloadError for what is no run.
  void read(Run run, std::span<Entry> entries) {
    const std::array<float, 2> magnitudes = {magnitude(), magnitude()};
    if (magnitudes[1] < magnitudes[0]) throw PayloadError("a run of sparseloco has its larger magnitude first");
    std::array<std::uint64_t, kMostKept> fields;
    for (std::size_t j = 0; j < run.kept(); ++j) fields[j] = next(kEntryBits);
    std::array<std::uint16_t, kMostKept> uppers;
    if (!run.upper_parts().find(number(run.upper_parts().bits()), uppers))
      throw PayloadError("a run of sparseloco has places of a number that there is not");
    for (std::size_t j = 0; j < run.kept(); ++j) {
      const std::size_t place = (uppers[j] - j) << kLowerBits | (fields[j] & ((1U << kLowerBits) - 1));
      if (place >= run.elements || (j > 0 && place <= entries[j - 1].place))
        throw PayloadError("places of a run of sparseloco do not ascend below " + std::to_string(run.elements) + ": number " +
                           std::to_string(j) + " is " + std::to_string(place));
      const float value = magnitudes[fields[j] >> (kLowerBits + 1)];
      entries[j] = {static_cast<std::uint16_t>(place), (fields[j] >> kLowerBits & 1U) != 0 ? -value : value};
    }
  }
  void expect_end() {
    if (next(static_cast<unsigned>(bits_ - position_)) != 0) throw PayloadError("a chunk of sparseloco has bits beyond the last run");
  }

 private:
  std::uint64_t next(unsigned count) {
    const std::uint64_t bits = kernels::bits_at(padded_.data(), position_);
    position_ += count;
    return count < 64 ? bits & ((std::uint64_t{1} << count) - 1) : bits;
  }
  float magnitude() {
    const auto half = static_cast<std::uint16_t>(next(16));
    const float value = kernels::value_of_bf16(half);
    if (!std::isfinite(value) || (half & 0x8000) != 0)
      throw PayloadError("a run of sparseloco has the magnitude " + std::to_string(value) + "; it must be finite and not negative");
    return value;
  }
  Combinations::Number number(unsigned bits) {
    Combinations::Number number{};
    for (std::size_t w = 0; bits > 0; ++w) {
      const unsigned count = std::min(bits, 64U);
      number[w] = next(count);
      bits -= count;
    }
    return number;
  }

  static constexpr std::size_t kMostBytes = 1024;  // of a chunk's code
  std::array<std::byte, kMostBytes> padded_{};
  std::size_t position_ = 0, bits_ = 0;
};

class SparseLoCo : public Compressor, private PieceCodec {
 public:
  SparseLoCo(Reduce reduce, float residual_decay) : reduce_(reduce), residual_decay_(residual_decay) {}
  Exchange exchange(Work& work, Context& context) const override { return reduce_coded(*this, reduce_, work, context); }
  bool chooses_by_link() const override { return reduce_ == Reduce::kAuto; }
  bool serves_owners() const override { return true; }
  float residual_decay() const override { return residual_decay_; }

 private:
  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override { return code_bytes(piece.elements()); }
  std::size_t room_bytes(const Piece& piece, std::size_t /*codes*/) const override {
    return code_bytes(piece.elements()) + kBeyond + sizeof(std::uint64_t) + kernels::selecting_room(kRun) * sizeof(std::uint16_t);
  }

  std::size_t encode_piece(const Piece& /*piece*/, Pass /*pass*/, std::span<float> values, const kernels::Magnitudes& /*magnitudes*/,
                           std::span<std::byte> code, std::span<std::byte> room) const override {
    const auto selecting = carve<std::uint16_t>(room, kernels::selecting_room(kRun));
    kernels::BitAppender appender(room.data());
    for_each_run(values.size(), [&](std::size_t first, Run run) {
      std::array<std::uint16_t, kMostKept> places;
      const auto taken = std::span(places).first(run.kept());
      kernels::select_largest(values.subspan(first, run.elements), taken, selecting);
      append(values.subspan(first, run.elements), run, taken, appender);
    });
    appender.finish();
    std::ranges::copy(room.first(code.size()), code.begin());
    return code.size();
  }

  // places: afterwards what their upper parts are numbered by.
  static void append(std::span<const float> values, Run run, std::span<std::uint16_t> places, kernels::BitAppender& appender) {
    const auto mean_of = [&](const auto& belongs) {
      double sum = 0, count = 0;
      for (const std::uint16_t place : places) {
        const auto magnitude = static_cast<double>(std::abs(values[place]));
        if (!belongs(magnitude)) continue;
        sum += magnitude;
        count += 1;
      }
      return count > 0 ? sum / count : 0;
    };
    const double bound = mean_of([](double) { return true; });
    const double low = mean_of([=](double magnitude) { return magnitude <= bound; });
    const double high = mean_of([=](double magnitude) { return magnitude > bound; });
    appender.append(finite_bf16_of(static_cast<float>(low)), 16);
    appender.append(finite_bf16_of(static_cast<float>(std::max(low, high))), 16);
    for (std::size_t j = 0; j < places.size(); ++j) {
      const float value = values[places[j]];
      const std::uint64_t lower = places[j] & ((1U << kLowerBits) - 1), negative = value < 0 ? 1 : 0;
      const std::uint64_t larger = static_cast<double>(std::abs(value)) > bound ? 1 : 0;
      appender.append(lower | negative << kLowerBits | larger << (kLowerBits + 1), kEntryBits);
      places[j] = static_cast<std::uint16_t>((places[j] >> kLowerBits) + j);
    }
    const Combinations::Number number = run.upper_parts().number_of(places);
    unsigned bits = run.upper_parts().bits();
    for (std::size_t w = 0; bits > 0; ++w) {
      const unsigned count = std::min(bits, 64U);
      appender.append(number[w], count);
      bits -= count;
    }
  }

  // All zeros is a chunk that was left out: the numbers of combinations begin with 1.
  static bool is_left_out(std::span<const std::byte> code) {
    return std::ranges::all_of(code, [](std::byte byte) { return byte == std::byte{0}; });
  }

  float check(std::span<const std::byte> code, const Piece& piece) const override {
    float largest = 0;
    if (is_left_out(code)) return largest;
    RunReader reader(code);
    for_each_run(piece.elements(), [&](std::size_t, Run run) {
      std::array<Entry, kMostKept> entries;
      reader.read(run, entries);
      for (std::size_t j = 0; j < run.kept(); ++j) largest = std::max(largest, std::abs(entries[j].value));
    });
    reader.expect_end();
    return largest;
  }

  void decode(std::span<const std::byte> code, const Piece& /*piece*/, float weight, bool add, std::span<float> values,
              std::span<std::byte> /*room*/) const override {
    if (!add) std::ranges::fill(values, 0.0f);
    if (is_left_out(code)) return;
    RunReader reader(code);
    for_each_run(values.size(), [&](std::size_t first, Run run) {
      std::array<Entry, kMostKept> entries;
      reader.read(run, entries);
      for (std::size_t j = 0; j < run.kept(); ++j) values[first + entries[j].place] += weight * entries[j].value;
    });
  }

  Reduce reduce_;
  float residual_decay_;
};

}  // namespace

Row sparseloco_row() {
  Row row;
  row.info = {.name = "sparseloco",
              .family = Family::kSparsifiers,
              .description = "SparseLoCo: of every 4096 entries the 64 of the largest magnitudes, as a sign and one of two magnitudes, with places "
                             "in 7.55 bits",
              .bits = "0.157",
              .wire_id = kWireId,
              .wire_version = kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "Sarfi et al., 2025, arXiv 2508.15706; places: Cover, IEEE Trans. Information Theory 19, 1973"};
  row.info.parameters = {real("decay", "1", 0, 1, "share of the residual that is added in the next step; below 1 the rest is forgotten"), feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<SparseLoCo>(reduce_of(values.choice("reduce")), static_cast<float>(values.real("decay")));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.bits = bits_sent(static_cast<double>(Run{kRun}.bits()) / kRun, values.choice("reduce"));
    claims.lost = 0.99;
    claims.conserves = values.real("decay") == 1;
    return claims;
  };
  row.trials.further = {"decay=0.95", "decay=0,reduce=scatter"};
  return row;
}

}  // namespace thinwire
