// THC, tensor homomorphic compression: a chunk is rotated alike by all workers, who agree on one range of rotated entries and round them
// to even levels within it. Numbers of levels add up: nobody decodes before the end.
// Source: Li et al., "THC: accelerating distributed deep learning using tensor homomorphic compression", NSDI 2024, algorithms 1 and 3.
// Symbols: x a block of d entries, H D the rotation (rotation.h), y = d^-1/2 H D x, l the largest length |x| of all workers, b bits
// (`bits`), s = 2^(b-1) - 1 levels of each sign and a level 0. Decoded is d^-1/2 D H of the levels.
//
// Rounds, bytes: summed_levels.h. A block's norm is agreed in the first round; l tells the range before anybody has rotated anything,
// since rotated entries are nearly normal with deviation l / d^1/2 at most.
//
// feedback=on: the range is where it loses least of a normal distribution, with entries beyond it cut off, which is the paper's t_p;
// the nearest level. The paper rounds at random here too; but with 0 among the levels the nearest one makes every worker's encoding a
// contraction, whatever the others' lengths are: a worker whose entries are all below half of a step keeps them until they are not.
// feedback=off: the range is the largest rotated entry of any worker, the norm is that, and rounding at random makes the expectation exact.
//
// The paper's levels are uneven: b bits go to the parameter server, which sends back sums of the numbers from 0 to g that a table has
// for them. In all-reduce sums of numbers up to g travel both ways, and g + 1 even levels fit in the same fields: uneven ones would
// save nothing.
//
// Memory passes: encode reads the values twice, rotates once (feedback=off: twice), decode rotates once.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "compressors/quantizers/rotation.h"
#include "compressors/quantizers/summed_levels.h"
#include "compressors/shared/compressor.h"
#include "compressors/shared/row.h"
#include "kernels/hadamard.h"
#include "kernels/rounding.h"
#include "kernels/statistics.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 59;
constexpr int kLeastBits = 2, kMostBits = 8;
constexpr std::size_t kTile = 1024;  // entries that are rounded at a time
constexpr float kLargest = std::numeric_limits<float>::max();

// Steps between 2^b - 1 levels that lose least of a normal distribution: Max, "Quantizing for minimum distortion", 1960, table II.
constexpr std::array<double, kMostBits - kLeastBits + 1> kBestSteps = {1.224006361,  0.6507696983, 0.3534113103, 0.193248525,
                                                                       0.1054875806, 0.0572612772, 0.0308700903};

class Thc : public Compressor, private SummedCode {
 public:
  Thc(int bits, bool feedback) : bits_(bits), feedback_(feedback) {}
  Exchange exchange(Work& work, Context& context) const override { return sum_levels(*this, work, context); }

 private:
  std::int32_t levels() const override { return (1 << (bits_ - 1)) - 1; }
  std::size_t entries(std::size_t elements) const override { return blocks_of(elements).entries; }
  std::size_t norms(std::size_t elements) const override { return blocks_of(elements).count; }
  std::size_t room_floats(std::size_t elements) const override { return block_at(elements); }
  double largest_mean(float norm) const override {
    return static_cast<double>(norm) * (feedback_ ? levels() * step_share(1) : std::sqrt(static_cast<double>(kChunkElements)));
  }

  // What norms are multiplied by to be steps between levels of d^1/2 y.
  double step_share(std::size_t d) const {
    if (feedback_) return kBestSteps[static_cast<std::size_t>(bits_ - kLeastBits)];
    return std::sqrt(static_cast<double>(d)) / levels();
  }

  // A step, divided by 2^exponent.
  double step_at(std::size_t d, float norm, int exponent) const { return step_share(d) * std::ldexp(static_cast<double>(norm), -exponent); }

  static std::uint32_t seed_of(const Piece& piece) {
    const RandomSequence common = piece.random.common();
    std::uint32_t seed;
    kernels::random_words(common.counter, common.key, std::span(&seed, 1));
    return seed;
  }

  // block <- d^1/2 y / 2^exponent
  static void rotate(std::span<const float> values, std::uint32_t seed, std::size_t first, int exponent, std::span<float> block) {
    fill_block(values, block);
    kernels::divide(block, std::ldexp(1.0f, exponent));
    change_signs(seed, first, block);
    kernels::hadamard(block);
  }

  void measure(const Piece& piece, std::span<const float> values, std::span<float> norms, std::span<float> room) const override {
    const std::uint32_t seed = feedback_ ? 0 : seed_of(piece);
    for_each_block(values.size(), [&](std::size_t first, std::size_t length, std::size_t number) {
      const auto own = part_of_block(values, first, length);
      const kernels::Magnitudes magnitudes = kernels::measure(own);
      if (magnitudes.largest == 0) {
        norms[number] = 0;
        return;
      }
      const double norm = feedback_ ? length_of(own, magnitudes) : largest_rotated(own, magnitudes, seed, first, room.first(length));
      const auto sent = static_cast<float>(std::min(norm, 0.999 * static_cast<double>(kLargest)));
      norms[number] = std::max(sent, std::numeric_limits<float>::denorm_min());
    });
  }

  static double length_of(std::span<const float> values, const kernels::Magnitudes& magnitudes) {
    const bool squares_are_floats = magnitudes.largest > 1e-10f && magnitudes.largest < 1e15f;
    return std::sqrt(squares_are_floats ? static_cast<double>(magnitudes.sum_squares) : kernels::squared_norm(values));
  }
  static double largest_rotated(std::span<const float> values, const kernels::Magnitudes& magnitudes, std::uint32_t seed, std::size_t first,
                                std::span<float> block) {
    const int exponent = std::ilogb(magnitudes.largest);
    rotate(values, seed, first, exponent, block);
    return std::ldexp(static_cast<double>(kernels::scan(block).largest) / std::sqrt(static_cast<double>(block.size())), exponent);
  }

  void to_levels(const Piece& piece, std::span<const float> values, std::span<const float> norms, const LevelsToWrite& levels_out,
                 std::span<float> room) const override {
    const std::uint32_t seed = seed_of(piece);
    std::array<std::uint32_t, kTile> words;
    std::array<std::int32_t, kTile> rounded;
    words.fill(std::uint32_t{1} << 31);  // one half, that is to the nearest
    for_each_block(values.size(), [&](std::size_t first, std::size_t length, std::size_t number) {
      if (!(norms[number] > 0)) return;
      const auto block = room.first(length);
      const int exponent = std::ilogb(norms[number]);
      rotate(part_of_block(values, first, length), seed, first, exponent, block);
      const auto inverse_step = static_cast<float>(1 / step_at(length, norms[number], exponent));
      for (std::size_t done = 0; done < length; done += kTile) {
        const auto tile = std::span<const float>(block).subspan(done, std::min(kTile, length - done));
        if (!feedback_) kernels::rounding_words(piece.random.counter, piece.random.key, first + done, std::span(words).first(tile.size()));
        const auto tile_levels = std::span(rounded).first(tile.size());
        kernels::round_randomly(tile, inverse_step, levels(), std::span(words).first(tile.size()), tile_levels);
        levels_out.put(tile_levels, first + done);
      }
    });
  }

  void from_levels(const Piece& piece, const LevelsToRead& levels_in, std::span<const float> norms, float weight, bool subtract,
                   std::span<float> values, std::span<float> room) const override {
    const std::uint32_t seed = seed_of(piece);
    std::array<std::int32_t, kTile> levels_room;
    for_each_block(values.size(), [&](std::size_t first, std::size_t length, std::size_t number) {
      const auto block = room.first(length);
      for (std::size_t done = 0; done < length; done += kTile) {
        const auto tile = std::span(levels_room).first(std::min(kTile, length - done));
        levels_in.take(first + done, tile);
        kernels::scale_levels(tile, 1.0f / static_cast<float>(length), block.subspan(done, tile.size()));
      }
      kernels::hadamard(block);
      change_signs(seed, first, block);
      const int exponent = norms[number] > 0 ? std::ilogb(norms[number]) : 0;
      const auto factor = static_cast<float>(static_cast<double>(weight) * step_at(length, norms[number], exponent));
      const float power = std::ldexp(1.0f, exponent);  // apart, as a step that is nearly denormal has few digits
      const auto out = part_of_block(values, first, length);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const float entry = std::clamp(factor * block[i] * power, -kLargest, kLargest);
        out[i] = subtract ? out[i] - entry : entry;
      }
    });
  }

  int bits_;
  bool feedback_;
};

}  // namespace

Row thc_row() {
  Row row;
  row.info = {.name = "thc",
              .family = Family::kRotations,
              .description = "THC, numbers of levels that add up: a random rotation that all workers share, and even levels of a range "
                             "that they agree on; feedback=off: unbiased",
              .bits = "2 to 8",
              .wire_id = kWireId,
              .aggregation = Aggregation::kLinear,
              .contractive = true,
              .reference = "Li et al., NSDI 2024, arXiv 2302.08545"};
  row.info.sizes = {"bits"};
  row.info.parameters = {
      whole_number("bits", "4", kLeastBits, kMostBits,
                   "2^(bits-1) - 1 levels of each sign and 0; sums of W workers' take log2(W) bits more"),
      feedback("on")};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Thc>(static_cast<int>(values.integer("bits")), values.choice("feedback") == "on");
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.contractive = values.choice("feedback") == "on";
    claims.unbiased = !claims.contractive;
    return claims;
  };
  return row;
}

}  // namespace thinwire
