// SKCompress: of each chunk the largest magnitudes, in bins of equal counts, whose numbers go into a MinMaxSketch.
// Source: Jiang, Fu, Yang, Shao, Cui: "SKCompress: compressing sparse and nonuniform gradient in distributed machine learning", VLDB Journal
// 29, 2020, sections 3 and 4, and "SketchML", SIGMOD 2018. Symbols: of n entries k = ceil(density n) are sent; q = 2^bits bins by quantiles
// of their magnitudes; r `groups` of q/r neighbouring bins, each with a sketch of s `rows` of t = ceil(`cells` k/r) cells:
//
//   insert: in every row the cell of the entry's place becomes the least of the bins' numbers that came there
//   query:  the greatest of the cells of a place, which is the number that was inserted or a lower one of its group
//
// As published keys are kept for each group; here a group's number stands beside the entry, which takes as many bits. Published are bins for
// either sign; here a sign is a bit. Published is that a bin means its middle, so that an entry that is read as a lower bin shrinks, and none
// overshoots. Here a bin means the mean magnitude of the entries that the sketch, which the encoder asks as well, reads as that bin: then no
// error is larger than what is sent, and what is lost of a chunk is never more than a share of it. Keys as gaps of any length, and Huffman's
// code for bins of gradients that are not sparse, are not there: places take less (places.h), at a fixed length.
//
// A code: q float32 means; the places; k signs, k numbers of groups and r s t numbers within a group, packed (kernels/codes.h):
// 32 q + k (3 + log2(n/k) + log2 r + s `cells` log2(q/r)) bits. Gradient and residual are read once, and by decoding.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "compressors/shared/reduce_coded.h"
#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/places.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "kernels/hash.h"
#include "kernels/selecting.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr int kMostBits = kernels::kMaxCodeBits, kMostGroupBits = 4;

class SkCompress : public Compressor, private PieceCodec {
 public:
  static constexpr std::uint8_t kWireId = 73, kWireVersion = 1;
  struct Options {
    double density = 0.05;
    int bits = 6, group_bits = 3;
    std::size_t rows = 2;
    double cells = 0.2;
    Reduce reduce = Reduce::kGather;
  };
  explicit SkCompress(const Options& options) : options_(options) {}
  Exchange exchange(Work& work, Context& context) const override { return reduce_coded(*this, options_.reduce, work, context); }
  bool chooses_by_link() const override { return options_.reduce == Reduce::kAuto; }
  bool serves_owners() const override { return true; }

 private:
  // A chunk's code, part by part, to read or to write.
  template <class Byte>
  struct Parts {
    std::span<Byte> means, places, signs, groups, cells;
  };

  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override;
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;
  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override;
  float check(std::span<const std::byte> code, const Piece& piece) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;

  std::size_t kept(const Piece& piece) const { return kept_entries(options_.density, piece.elements()); }
  PlaceCode places(const Piece& piece) const { return {kept(piece), piece.elements()}; }
  std::size_t bins() const { return std::size_t{1} << options_.bits; }
  int cell_bits() const { return options_.bits - options_.group_bits; }
  // Of a row of one group, and of all rows and groups; none where a group is one bin.
  std::uint32_t cells_of_row(const Piece& piece) const {
    const double groups = std::exp2(options_.group_bits);
    return static_cast<std::uint32_t>(std::ceil(options_.cells * static_cast<double>(kept(piece)) / groups));
  }
  std::size_t cells(const Piece& piece) const {
    return cell_bits() == 0 ? 0 : (options_.rows << options_.group_bits) * cells_of_row(piece);
  }
  template <class Byte>
  Parts<Byte> parts_of(std::span<Byte> code, const Piece& piece) const;
  // Calls body(cell) for those of an entry, one of each row.
  template <class Body>
  void for_each_cell(const Piece& piece, std::size_t place, std::size_t group, const Body& body) const;
  // What the sketches make of an entry.
  std::size_t bin_read(const Piece& piece, std::size_t place, std::size_t group, std::span<const std::uint8_t> sketches) const {
    std::size_t within = 0;
    for_each_cell(piece, place, group, [&](std::size_t cell) { within = std::max<std::size_t>(within, sketches[cell]); });
    return group << cell_bits() | within;
  }

  Options options_;
};

template <class Body>
void SkCompress::for_each_cell(const Piece& piece, std::size_t place, std::size_t group, const Body& body) const {
  if (cell_bits() == 0) return;
  const std::uint32_t count = cells_of_row(piece);
  for (std::size_t row = 0; row < options_.rows; ++row) {
    // Other hashes in every step, so that nobody is unlucky for ever.
    const std::uint64_t hashed = kernels::hash(kernels::mix(kernels::hash(piece.step, piece.first) ^ row), place);
    body((group * options_.rows + row) * count + kernels::bucket_of(hashed, count));
  }
}

template <class Byte>
SkCompress::Parts<Byte> SkCompress::parts_of(std::span<Byte> code, const Piece& piece) const {
  const auto take = [&](std::size_t bytes) {
    const auto taken = code.first(bytes);
    code = code.subspan(bytes);
    return taken;
  };
  Parts<Byte> parts;
  parts.means = take(bins() * sizeof(float));
  parts.places = take(places(piece).bytes());
  parts.signs = take(kernels::packed_bytes(kept(piece), 1));
  parts.groups = take(kernels::packed_bytes(kept(piece), options_.group_bits));
  parts.cells = take(kernels::packed_bytes(cells(piece), cell_bits()));
  return parts;
}

std::size_t SkCompress::most_bytes(const Piece& piece) const {
  return bins() * sizeof(float) + places(piece).bytes() + kernels::packed_bytes(kept(piece), 1) +
         kernels::packed_bytes(kept(piece), options_.group_bits) + kernels::packed_bytes(cells(piece), cell_bits());
}

// Magnitudes and their order, places, and unpacked bytes.
std::size_t SkCompress::room_bytes(const Piece& piece, std::size_t /*codes*/) const {
  const std::size_t k = kept(piece);
  return k * (sizeof(std::uint64_t) + sizeof(std::uint16_t) + 3) + kernels::selecting_room(piece.elements()) * sizeof(std::uint16_t) +
         cells(piece);
}

std::size_t SkCompress::encode_piece(const Piece& piece, Pass /*pass*/, std::span<float> values, const kernels::Magnitudes& /*magnitudes*/,
                                     std::span<std::byte> code, std::span<std::byte> room) const {
  const std::size_t k = kept(piece);
  const auto ordered = carve<std::uint64_t>(room, k);
  const auto taken = carve<std::uint16_t>(room, k), selecting = carve<std::uint16_t>(room, kernels::selecting_room(values.size()));
  const auto signs = carve<std::uint8_t>(room, k), groups = carve<std::uint8_t>(room, k), sketches = carve<std::uint8_t>(room, cells(piece));
  kernels::select_largest(values, taken, selecting);
  // Magnitudes as bits, which order them, above the entries' numbers.
  for (std::size_t j = 0; j < k; ++j) {
    signs[j] = std::signbit(values[taken[j]]) ? 1 : 0;
    ordered[j] = std::uint64_t{std::bit_cast<std::uint32_t>(std::abs(values[taken[j]]))} << 32 | j;
  }
  std::ranges::sort(ordered);
  std::ranges::fill(sketches, static_cast<std::uint8_t>((1 << cell_bits()) - 1));
  for (std::size_t rank = 0; rank < k; ++rank) {
    const std::size_t j = ordered[rank] & 0xFFFFFFFF, bin = rank * bins() / k;
    groups[j] = static_cast<std::uint8_t>(bin >> cell_bits());
    const auto within = static_cast<std::uint8_t>(bin & ((std::size_t{1} << cell_bits()) - 1));
    for_each_cell(piece, taken[j], groups[j], [&](std::size_t cell) { sketches[cell] = std::min(sketches[cell], within); });
  }
  std::array<double, 1 << kMostBits> sums{};
  std::array<std::size_t, 1 << kMostBits> counts{};
  for (std::size_t j = 0; j < k; ++j) {
    const std::size_t bin = bin_read(piece, taken[j], groups[j], sketches);
    sums[bin] += std::abs(static_cast<double>(values[taken[j]]));
    ++counts[bin];
  }
  const Parts parts = parts_of(code, piece);
  for (std::size_t bin = 0; bin < bins(); ++bin) {
    const float mean = counts[bin] > 0 ? static_cast<float>(sums[bin] / static_cast<double>(counts[bin])) : 0;
    std::memcpy(parts.means.data() + bin * sizeof mean, &mean, sizeof mean);
  }
  places(piece).write(taken, parts.places);
  kernels::pack(signs, 1, parts.signs);
  if (options_.group_bits > 0) kernels::pack(groups, options_.group_bits, parts.groups);
  if (cell_bits() > 0) kernels::pack(sketches, cell_bits(), parts.cells);
  return code.size();
}

// All zeros is a chunk that was left out.
float SkCompress::check(std::span<const std::byte> code, const Piece& piece) const {
  const Parts parts = parts_of(code, piece);
  float largest = 0;
  for (std::size_t bin = 0; bin < bins(); ++bin) {
    float mean;
    std::memcpy(&mean, parts.means.data() + bin * sizeof mean, sizeof mean);
    if (!std::isfinite(mean) || std::signbit(mean))
      throw PayloadError("a chunk of skcompress has a bin whose mean magnitude is " + std::to_string(mean));
    largest = std::max(largest, mean);
  }
  if (!places(piece).check(parts.places) && largest > 0) throw PayloadError("a chunk of skcompress has values, and no places for them");
  return largest;
}

void SkCompress::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                        std::span<std::byte> room) const {
  const Parts parts = parts_of(code, piece);
  const std::size_t k = kept(piece);
  std::array<float, 1 << kMostBits> means;
  std::memcpy(means.data(), parts.means.data(), parts.means.size());
  const auto signs = carve<std::uint8_t>(room, k), groups = carve<std::uint8_t>(room, k), sketches = carve<std::uint8_t>(room, cells(piece));
  kernels::unpack(parts.signs, 1, signs);
  std::ranges::fill(groups, std::uint8_t{0});
  if (options_.group_bits > 0) kernels::unpack(parts.groups, options_.group_bits, groups);
  if (cell_bits() > 0) kernels::unpack(parts.cells, cell_bits(), sketches);
  if (!add) std::ranges::fill(values, 0.0f);
  places(piece).read(parts.places, [&](std::size_t j, std::size_t place) {
    const float mean = means[bin_read(piece, place, groups[j], sketches)];
    values[place] += weight * (signs[j] != 0 ? -mean : mean);
  });
}

SkCompress::Options options_of(const SpecValues& values) {
  const auto groups = static_cast<unsigned>(std::stoi(values.choice("groups")));
  return {.density = values.real("density"),
          .bits = static_cast<int>(values.integer("bits")),
          .group_bits = std::countr_zero(groups),
          .rows = static_cast<std::size_t>(std::stoi(values.choice("rows"))),
          .cells = values.real("cells"),
          .reduce = reduce_of(values.choice("reduce"))};
}

}  // namespace

Row skcompress_row() {
  Row row;
  row.info = {.name = "skcompress",
              .family = Family::kSparsifiers,
              .description = "SKCompress, bins in a MinMaxSketch: of each chunk the largest magnitudes, as numbers of quantile bins that a "
                             "sketch holds, with their places",
              .bits = "0.68 at 5 %",
              .wire_id = SkCompress::kWireId,
              .wire_version = SkCompress::kWireVersion,
              .aggregation = Aggregation::kGather,
              .contractive = true,
              .reference = "Jiang et al., VLDB Journal 29, 2020; SIGMOD 2018"};
  row.info.sizes = {"density"};
  row.info.parameters = {density_parameter("0.05"), whole_number("bits", "6", kMostGroupBits, kMostBits, "a chunk has 2^bits bins of magnitudes"),
                         choice("groups", {"8", "1", "2", "4", "16"}, "of neighbouring bins, each with a sketch of its own"),
                         choice("rows", {"2", "1", "3"}, "of a sketch"),
                         real("cells", "0.2", 0.01, 4, "of a row for each entry of its group"), feedback("on"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor { return std::make_unique<SkCompress>(options_of(values)); };
  row.claims = [](const SpecValues& values, Claims claims) {
    const SkCompress::Options options = options_of(values);
    const double within = options.bits - options.group_bits;
    const double entry = 3 - std::log2(options.density) + options.group_bits + static_cast<double>(options.rows) * options.cells * within;
    claims.bits = bits_sent(options.density * entry + 32 * std::exp2(options.bits) / kChunkElements, values.choice("reduce"));
    claims.contractive = values.choice("reduce") == "gather";  // an owner's own part loses twice
    claims.lost = 1;
    return claims;
  };
  row.trials.further = {"density=0.1,bits=4,reduce=scatter", "density=1,bits=8,groups=16,rows=3,cells=1", "bits=4,groups=16",
                        "density=0.02,bits=4,groups=1,rows=1"};
  return row;
}

}  // namespace thinwire
