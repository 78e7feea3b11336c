// signSGD with majority vote: a worker sends the sign of every entry, and what all decode is the sign of the sum of signs.
// Source: Bernstein, Wang, Azizzadenesheli, Anandkumar, "signSGD: compressed optimisation for non-convex problems", ICML 2018, algorithm 3.
//
// Signum: the sign of a worker's own momentum, m <- b m + (1 - b) g, instead of the gradient's. Source: Bernstein, Zhao, Azizzadenesheli,
// Anandkumar, "signSGD with majority vote is communication efficient and fault tolerant", ICLR 2019, algorithm 1. The momentum is part
// of the optimizer: its own must be 0. A step that fails leaves m as it was.
//
// The result is +scale or -scale and no mean: scale = 1 is the paper's update. So a learning rate means how far every parameter moves in a
// step, as in Adam; where gradients that travel uncompressed share it, scale is what brings signs to their size. Error feedback is left
// out, as the paper does: what a vote leaves is no error of a mean.
//
// One bit says no zero. An entry of 0 votes at random, and where as many workers vote for each sign, as two do for half of the entries,
// the result is drawn, by numbers that all workers draw alike: always the same sign would be a drift. A chunk of zeros alone abstains, and
// where all abstain, the result is 0. reduce=scatter is the paper's vote, one bit each way: owners count, and their votes come back.
// reduce=gather, where everybody counts, has the same result.
//
// A code: a byte, 1, or 0 if the chunk abstains; then a bit an entry (kernels/codes.h).
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "compressors/shared/element_memory.h"
#include "compressors/shared/reduce_coded.h"
#include "compressors/shared/row.h"
#include "core/divide.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "kernels/rounding.h"
#include "kernels/rows.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireVersion = 1;
constexpr std::byte kAbstains{0}, kVotes{1};
constexpr float kAbove[] = {0}, kNotBelow[] = {-std::numeric_limits<float>::denorm_min()};
using Signs = std::array<float, 2>;

class SignSgd : public Compressor, private PieceCodec {
 public:
  struct Options {
    const char* name = "";
    std::uint8_t wire_id = 0;
    float scale = 1;
    std::optional<float> momentum = {};  // b
    Reduce reduce = Reduce::kGather;
  };
  explicit SignSgd(const Options& options) : options_(options), scale_(options.scale), reduce_(options.reduce) {}
  Exchange exchange(Work& work, Context& context) const override { return reduce_coded(*this, reduce_, work, context); }
  bool chooses_by_link() const override { return reduce_ == Reduce::kAuto; }
  bool serves_owners() const override { return true; }
  std::uint64_t fewest_chunk_elements() const override { return thinwire::fewest_chunk_elements(reduce_, kFewestChunkElements); }
  bool remembers_elements() const override { return options_.momentum.has_value(); }
  bool depends_on_scale() const override { return true; }  // the result is +scale or -scale, whatever the values' magnitude
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t /*chunk*/) const override {
    return options_.momentum ? std::make_unique<ElementMemory>(parameter.elements()) : nullptr;
  }

 private:
  std::uint8_t wire_id() const override { return options_.wire_id; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override { return sizeof kVotes + kernels::packed_bytes(piece.elements(), 1); }
  // Codes to decode at once and what they mean; random numbers, and twice the signs.
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override {
    return codes * (sizeof(kernels::Coded) + sizeof(Signs)) + coins(piece.elements()) * sizeof(std::uint32_t) +
           2 * kernels::packed_bytes(piece.elements(), 1);
  }
  static std::size_t coins(std::size_t elements) { return divided_up<std::size_t>(elements, 32); }

  // A bit of each value, which is drawn where the value is 0.
  static void write_signs(std::span<const float> values, const RandomSequence& random, std::span<std::byte> signs,
                          std::span<std::byte> room) {
    const auto words = carve<std::uint32_t>(room, coins(values.size()));
    const auto not_below = carve<std::byte>(room, signs.size());
    kernels::assign(values, kAbove, 1, signs);
    kernels::assign(values, kNotBelow, 1, not_below);
    if (std::ranges::equal(signs, not_below)) return;
    kernels::random_words(random.counter, random.key, words);
    const auto drawn = std::as_bytes(words);
    for (std::size_t i = 0; i < signs.size(); ++i) signs[i] |= not_below[i] & drawn[i];
  }

  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override {
    float largest = magnitudes.largest;
    if (options_.momentum && pass == Pass::kFirst) {
      kernels::multiply(values, 1 - *options_.momentum);
      kernels::add_scaled(values, ElementMemory::before(piece), *options_.momentum);
      std::ranges::copy(values, ElementMemory::after(piece).begin());
      largest = kernels::scan(values).largest;
    }
    if (largest == 0) {
      std::ranges::fill(code, kAbstains);
      return code.size();
    }
    code[0] = kVotes;
    write_signs(values, piece.random, code.subspan(1), room);
    return code.size();
  }

  float check(std::span<const std::byte> code, const Piece& /*piece*/) const override {
    if (code[0] > kVotes)
      throw PayloadError(std::string("a chunk of ") + options_.name + " begins with " + std::to_string(std::to_integer<int>(code[0])) +
                         "; it must be 1, or 0 if it abstains");
    return scale_;  // that of a vote, even if others abstain
  }

  static Signs meaning(std::span<const std::byte> code, float scale) {
    return code[0] == kVotes ? Signs{-scale, scale} : Signs{0, 0};
  }

  void decode(std::span<const std::byte> code, const Piece& /*piece*/, float weight, bool add, std::span<float> values,
              std::span<std::byte> /*room*/) const override {
    const Signs table = meaning(code, weight * scale_);
    if (add)
      kernels::look_up_add(code.subspan(1), 1, table, values);
    else
      kernels::look_up(code.subspan(1), 1, table, values);
  }

  // A vote, whatever the weight.
  void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& piece, float /*weight*/, std::span<float> values,
                  std::span<std::byte> room) const override {
    const auto coded = carve<kernels::Coded>(room, codes.size());
    const auto tables = carve<Signs>(room, codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      tables[i] = meaning(codes[i], 1);
      coded[i] = {codes[i].subspan(1), tables[i]};
    }
    kernels::look_up_sum(coded, 1, values);
    if (std::ranges::all_of(codes, [](std::span<const std::byte> code) { return code[0] == kAbstains; })) return;
    const auto coin_bytes = room.first(room_bytes(piece, 0));
    const auto signs = coin_bytes.last(kernels::packed_bytes(values.size(), 1));
    write_signs(values, piece.random.common(), signs, coin_bytes);
    kernels::look_up(signs, 1, Signs{-scale_, scale_}, values);
  }

  Options options_;
  float scale_;
  Reduce reduce_;
};

SpecParameter scale_parameter() { return real("scale", "1", 1e-12, 1, "what the result is for a positive sign"); }

Claims claims_of_votes(const SpecValues& values, Claims claims) {
  claims.bits = bits_sent(1, values.choice("reduce"));
  claims.conserves = false;  // a vote is no mean, also for a stage before it that has residuals
  claims.lost = 1;
  claims.remembers = values.has("momentum");
  return claims;
}

}  // namespace

Row signsgd_row() {
  constexpr std::uint8_t kWireId = 64;
  Row row;
  row.info = {.name = "signsgd",
              .family = Family::kSigns,
              .description = "signSGD with majority vote: the sign that most workers' entries have, times scale; it is no mean, and wants "
                             "a learning rate for signs",
              .bits = "1",
              .wire_id = kWireId,
              .wire_version = kWireVersion,
              .aggregation = Aggregation::kGather,
              .reference = "Bernstein et al., ICML 2018, arXiv 1802.04434"};
  row.info.sizes = {};  // its result is no gradient
  row.info.parameters = {scale_parameter(), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<SignSgd>(SignSgd::Options{.name = "signsgd",
                                                      .wire_id = kWireId,
                                                      .scale = static_cast<float>(values.real("scale")),
                                                      .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = claims_of_votes;
  row.trials.further = {"scale=0.001", "scale=0.001,reduce=scatter"};
  return row;
}

Row signum_row() {
  constexpr std::uint8_t kWireId = 70;
  Row row;
  row.info = {.name = "signum",
              .family = Family::kSigns,
              .description = "Signum, signs of a momentum: signsgd of every worker's own momentum; wants an optimizer without one, and a "
                             "learning rate for signs",
              .bits = "1",
              .wire_id = kWireId,
              .wire_version = kWireVersion,
              .aggregation = Aggregation::kGather,
              .reference = "Bernstein et al., ICLR 2019, arXiv 1810.05291"};
  row.info.sizes = {};  // its result is no gradient
  row.info.parameters = {real("momentum", "0.9", 0, 0.9999, "of the mean that the sign is taken of: the optimizer then must have none"),
                         scale_parameter(), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<SignSgd>(SignSgd::Options{.name = "signum",
                                                      .wire_id = kWireId,
                                                      .scale = static_cast<float>(values.real("scale")),
                                                      .momentum = static_cast<float>(values.real("momentum")),
                                                      .reduce = reduce_of(values.choice("reduce"))});
  };
  row.claims = claims_of_votes;
  row.trials.further = {"scale=0.001", "momentum=0.5,scale=0.001,reduce=scatter"};
  return row;
}

}  // namespace thinwire
