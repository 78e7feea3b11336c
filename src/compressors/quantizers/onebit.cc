// 1-bit SGD: the sign of every entry, which decodes to the mean of the chunk's values of that sign; error feedback keeps the rest.
// Source: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech
// DNNs", Interspeech 2014, section 3; here of chunks, published of columns. A zero counts as negative. It is a contraction by as little
// as 1/n of the energy, where one value outweighs all others: too little to be claimed.
//
// A code: the negative and the positive mean, as floats, then a bit an entry (kernels/codes.h).
#include <array>
#include <cmath>
#include <cstring>

#include "compressors/shared/reduce_coded.h"
#include "compressors/shared/row.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 56, kWireVersion = 1;
constexpr float kThreshold[] = {0};

class OneBit : public Compressor, private PieceCodec {
 public:
  explicit OneBit(Reduce reduce) : reduce_(reduce) {}
  Exchange exchange(Work& work, Context& context) const override { return reduce_coded(*this, reduce_, work, context); }
  bool chooses_by_link() const override { return reduce_ == Reduce::kAuto; }
  bool serves_owners() const override { return true; }
  std::uint64_t fewest_chunk_elements() const override { return thinwire::fewest_chunk_elements(reduce_, kFewestChunkElements); }

 private:
  using Means = std::array<float, 2>;

  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override { return sizeof(Means) + kernels::packed_bytes(piece.elements(), 1); }
  std::size_t room_bytes(const Piece& /*piece*/, std::size_t codes) const override {
    return codes * (sizeof(kernels::Coded) + sizeof(Means));
  }

  std::size_t encode_piece(const Piece& /*piece*/, Pass /*pass*/, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> /*room*/) const override {
    const kernels::ClusterSums sums = kernels::assign(values, kThreshold, 1, code.subspan(sizeof(Means)));
    Means means{};
    for (std::size_t c = 0; c < means.size(); ++c)
      if (sums.count[c] > 0) means[c] = sums.sum[c] / static_cast<float>(sums.count[c]);
    if (!std::isfinite(magnitudes.sum_abs)) means = means_of_large(values);
    std::memcpy(code.data(), means.data(), sizeof means);
    return code.size();
  }

  // Of values whose sums leave the range of float.
  static Means means_of_large(std::span<const float> values) {
    std::array<double, 2> sums{}, counts{};
    for (const float value : values) {
      sums[value > 0] += static_cast<double>(value);
      counts[value > 0] += 1;
    }
    Means means{};
    for (std::size_t c = 0; c < means.size(); ++c)
      if (counts[c] > 0) means[c] = static_cast<float>(sums[c] / counts[c]);
    return means;
  }

  static Means means_in(std::span<const std::byte> code) {
    Means means;
    std::memcpy(means.data(), code.data(), sizeof means);
    return means;
  }

  float check(std::span<const std::byte> code, const Piece& /*piece*/) const override {
    const Means means = means_in(code);
    if (!(means[0] <= 0 && means[1] >= 0) || !std::isfinite(means[0]) || !std::isfinite(means[1]))
      throw PayloadError("a chunk of onebit has the means " + std::to_string(means[0]) + " and " + std::to_string(means[1]) +
                         "; they must be finite, the first one not positive and the second one not negative");
    return std::max(-means[0], means[1]);
  }

  void decode(std::span<const std::byte> code, const Piece& /*piece*/, float weight, bool add, std::span<float> values,
              std::span<std::byte> /*room*/) const override {
    Means means = means_in(code);
    for (float& mean : means) mean *= weight;
    if (add)
      kernels::look_up_add(code.subspan(sizeof(Means)), 1, means, values);
    else
      kernels::look_up(code.subspan(sizeof(Means)), 1, means, values);
  }

  void decode_sum(std::span<const std::span<const std::byte>> codes, const Piece& /*piece*/, float weight, std::span<float> values,
                  std::span<std::byte> room) const override {
    const auto coded = carve<kernels::Coded>(room, codes.size());
    const auto means = carve<Means>(room, codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      means[i] = means_in(codes[i]);
      for (float& mean : means[i]) mean *= weight;
      coded[i] = {codes[i].subspan(sizeof(Means)), means[i]};
    }
    kernels::look_up_sum(coded, 1, values);
  }

  Reduce reduce_;
};

}  // namespace

Row onebit_row() {
  Row row;
  row.info = {.name = "onebit",
              .family = Family::kSigns,
              .description = "1-bit SGD: the sign of every entry, which stands for the mean of the chunk's values of that sign",
              .bits = "1",
              .wire_id = kWireId,
              .wire_version = kWireVersion,
              .aggregation = Aggregation::kGather,
              .reference = "Seide et al., Interspeech 2014"};
  row.info.parameters = {feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<OneBit>(reduce_of(values.choice("reduce")));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.bits = bits_sent(1, values.choice("reduce"));
    return claims;
  };
  return row;
}

}  // namespace thinwire
