// EDEN: a chunk is rotated at random, after which its entries are nearly normal whatever they were; the nearest of 2^bits centroids
// that are best for a normal distribution; and a scale that makes the expectation exact, or with error feedback the error least.
// Source: Vargaftik et al., "EDEN: communication-efficient and robust distributed mean estimation for federated learning", ICML 2022
// (with one bit DRIVE, NeurIPS 2021). Symbols: x a block of d entries, R = H D the rotation, H Walsh and Hadamard's matrix, D random
// signs, y = R x, c the centroids of y / sigma with sigma^2 = |y|^2 / d; S = |y|^2 / <c, y>, or <c, y> / |c|^2 with feedback, which needs
// a contraction; decoded is R^-1 S c.
//
// Blocks: rotation.h. Every worker has signs of its own, so that errors of equal gradients average out.
//
// A code: S of each block, a float; the seed of the signs, 32 bits; then packed numbers of centroids (kernels/codes.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "compressors/quantizers/rotation.h"
#include "compressors/shared/entropy_codec.h"
#include "compressors/shared/reduce_coded.h"
#include "compressors/shared/row.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "kernels/hadamard.h"
#include "kernels/rounding.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 57, kWireVersion = 1;
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int kMostBits = 4;

// Of a normal distribution, by Lloyd and Max: those above 0.
constexpr std::array<std::array<float, 1 << (kMostBits - 1)>, kMostBits> kCentroids = {
    {{0.797884561F},
     {0.452780035F, 1.510417608F},
     {0.245094179F, 0.756005281F, 1.343909279F, 2.151945705F},
     {0.128395030F, 0.388048299F, 0.656759119F, 0.942340456F, 1.256231197F, 1.618046386F, 2.069017227F, 2.732589571F}}};

class Eden : public Compressor, private NumberedCodec {
 public:
  Eden(int bits, bool feedback, Coding coding, Reduce reduce) : bits_(bits), feedback_(feedback), coding_(coding), reduce_(reduce) {
    const auto& positive = kCentroids[static_cast<std::size_t>(bits - 1)];
    const std::size_t half = std::size_t{1} << (bits - 1);
    for (std::size_t i = 0; i < half; ++i) {
      centroids_[half + i] = positive[i];
      centroids_[half - 1 - i] = -positive[i];
    }
  }
  Exchange exchange(Work& work, Context& context) const override {
    if (coding_ != Coding::kFixed) return reduce_coded(coded_, reduce_, work, context);
    return reduce_coded(*this, reduce_, work, context);
  }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& /*parameter*/, std::uint64_t /*chunk*/) const override { return memory_of(coding_); }
  bool chooses_by_link() const override { return reduce_ == Reduce::kAuto; }
  bool serves_owners() const override { return true; }
  std::uint64_t fewest_chunk_elements() const override { return thinwire::fewest_chunk_elements(reduce_, chunk_of_buckets(kFewestChunkElements, coding_)); }

 private:
  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t count() const { return std::size_t{1} << bits_; }

  std::size_t most_bytes(const Piece& piece) const override {
    const Blocks blocks = blocks_of(piece.elements());
    return sizeof(std::uint32_t) + blocks.count * sizeof(float) + kernels::packed_bytes(blocks.entries, bits_);
  }
  Numbers numbers(const Piece& piece) const override {
    const Blocks blocks = blocks_of(piece.elements());
    return {sizeof(std::uint32_t) + blocks.count * sizeof(float), blocks.entries, bits_};
  }
  std::size_t room_bytes(const Piece& piece, std::size_t /*codes*/) const override { return block_at(piece.elements()) * sizeof(float); }

  // Parts of a code, each in the order of blocks.
  template <class Byte>
  struct Parts {
    std::span<Byte> scales, seed, packed;
  };
  template <class Byte>
  static Parts<Byte> parts(std::span<Byte> code, std::size_t elements) {
    const std::size_t scales = blocks_of(elements).count * sizeof(float), packed = scales + sizeof(std::uint32_t);
    return {code.first(scales), code.subspan(scales, sizeof(std::uint32_t)), code.subspan(packed)};
  }

  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& /*magnitudes*/,
                           std::span<std::byte> code, std::span<std::byte> room) const override {
    const RandomSequence random = pass == Pass::kFirst ? piece.random : piece.random.second();
    std::uint32_t seed;
    kernels::random_words(random.counter, random.key, std::span(&seed, 1));
    const Parts<std::byte> all = parts(code, values.size());
    std::memcpy(all.seed.data(), &seed, sizeof seed);
    for_each_block(values.size(), [&](std::size_t first, std::size_t length, std::size_t number) {
      const auto block = carve_block(room, length);
      fill_block(part_of_block(values, first, length), block);
      const float scale = encode_block(seed, first, block, all.packed.subspan(first / 8 * static_cast<std::size_t>(bits_)));
      std::memcpy(all.scales.data() + number * sizeof scale, &scale, sizeof scale);
    });
    return code.size();
  }

  // Returns what decode() multiplies centroids by: S, times what both transforms make too much of it.
  float encode_block(std::uint32_t seed, std::size_t first, std::span<float> block, std::span<std::byte> packed) const {
    const auto codes = packed.first(kernels::packed_bytes(block.size(), bits_));
    const float largest = kernels::scan(block).largest;
    if (largest == 0) {
      std::ranges::fill(codes, std::byte{0});
      return 0;
    }
    const int exponent = std::ilogb(largest);
    kernels::divide(block, std::ldexp(1.0f, exponent));
    change_signs(seed, first, block);
    kernels::hadamard(block);
    const auto d = static_cast<float>(block.size());
    const float energy = kernels::measure(block).sum_squares, sigma = std::sqrt(energy / d);
    std::array<float, (1 << kMostBits) - 1> all_thresholds;
    const auto thresholds = std::span(all_thresholds).first(count() - 1);
    for (std::size_t i = 0; i < thresholds.size(); ++i) thresholds[i] = sigma * 0.5f * (centroids_[i] + centroids_[i + 1]);
    const kernels::ClusterSums sums = kernels::assign(block, thresholds, bits_, codes);
    double along = 0, length = 0;  // <c, y>, |c|^2
    for (std::size_t c = 0; c < count(); ++c) {
      const auto centroid = static_cast<double>(centroids_[c]);
      along += centroid * static_cast<double>(sums.sum[c]);
      length += centroid * centroid * sums.count[c];
    }
    const double scale = feedback_ ? along / length : static_cast<double>(energy) / along;
    return static_cast<float>(std::ldexp(scale / static_cast<double>(d), exponent));
  }

  float check(std::span<const std::byte> code, const Piece& piece) const override {
    const auto scales = parts(code, piece.elements()).scales;
    float largest = 0;
    for_each_block(piece.elements(), [&](std::size_t, std::size_t length, std::size_t number) {
      const float scale = scale_at(scales, number);
      if (!(scale >= 0) || !std::isfinite(scale))
        throw PayloadError("a chunk of eden has a block whose scale is " + std::to_string(scale) + "; it must be finite and not negative");
      // All centroids may add up in one entry, which decode() keeps in the range of floats.
      largest = std::max(largest, std::min(scale * static_cast<float>(length) * centroids_[count() - 1], kLargest));
    });
    return largest;
  }

  void decode(std::span<const std::byte> code, const Piece& /*piece*/, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override {
    const Parts<const std::byte> all = parts(code, values.size());
    std::uint32_t seed;
    std::memcpy(&seed, all.seed.data(), sizeof seed);
    for_each_block(values.size(), [&](std::size_t first, std::size_t length, std::size_t number) {
      const auto block = carve_block(room, length);
      const auto codes = all.packed.subspan(first / 8 * static_cast<std::size_t>(bits_), kernels::packed_bytes(length, bits_));
      kernels::look_up(codes, bits_, std::span(centroids_).first(count()), block);
      kernels::hadamard(block);
      change_signs(seed, first, block);
      const float scale = scale_at(all.scales, number);
      const auto out = part_of_block(values, first, length);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const float entry = weight * std::clamp(scale * block[i], -kLargest, kLargest);
        out[i] = add ? out[i] + entry : entry;
      }
    });
  }

  static std::span<float> carve_block(std::span<std::byte> room, std::size_t length) { return carve<float>(room, length); }
  static float scale_at(std::span<const std::byte> scales, std::size_t number) {
    float scale;
    std::memcpy(&scale, scales.data() + number * sizeof scale, sizeof scale);
    return scale;
  }

  int bits_;
  bool feedback_;
  Coding coding_;
  Reduce reduce_;
  EntropyCodec coded_{*this, coding_};
  std::array<float, 1 << kMostBits> centroids_{};  // 2^bits, ascending
};

MadeCompressor make(const SpecValues& values, MadeCompressor /*next*/) {
  const auto bits = static_cast<int>(values.integer("bits"));
  return std::make_unique<Eden>(bits, values.choice("feedback") == "on", coding_of(values), reduce_of(values.choice("reduce")));
}

Claims claims(const SpecValues& values, Claims claims) {
  claims.unbiased = values.choice("feedback") == "off";
  claims.contractive = !claims.unbiased;
  claims.bits = bits_sent(static_cast<double>(values.integer("bits")), values.choice("reduce"));
  claims.lost = 1;
  return claims;
}

}  // namespace

Row eden_row() {
  Row row;
  row.info = {.name = "eden",
              .family = Family::kRotations,
              .description = "EDEN: a random rotation of the chunk, then centroids of a normal distribution; with one bit DRIVE",
              .bits = "1 to 4",
              .wire_id = kWireId,
              .wire_version = kWireVersion,
              .aggregation = Aggregation::kGather,
              .unbiased = true,
              .reference = "Vargaftik et al., ICML 2022, arXiv 2108.08842"};
  row.info.sizes = {"bits"};
  row.info.parameters = {whole_number("bits", "2", 1, kMostBits, "bits an entry"),
                         feedback("off"), coding(), reduce()};
  row.make = make;
  row.claims = claims;
  return row;
}

}  // namespace thinwire
