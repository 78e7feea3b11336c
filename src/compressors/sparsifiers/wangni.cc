// Wangni et al.: every entry is sent or not, at random with a probability of its own, and divided by that: unbiased, and of all choices of
// probabilities with that expectation exact the one of least variance for the number of entries that are sent on average.
// Source: Wangni, Wang, Liu, Zhang: "Gradient sparsification for communication-efficient distributed optimization", NeurIPS 2018,
// proposition 1, algorithm 3 and section 3.3; here of chunks. Symbols: p_i = min(1, lambda |g_i|), rho = density, d = n entries of a chunk.
// As |g_i| / p_i = 1 / lambda wherever p_i < 1, all those are sent as a sign; the others as they are.
//
// 1. unit = 1 / lambda is found greedily: sum |g_i| / (rho d) at first; then, as long as probabilities were cut off at 1, the sum of the
//    others over how many of those are wanted. That makes it smaller every time, so that fewer are left; the paper stops after two rounds,
//    here it goes on until nothing changes. Where no more than rho d entries are not 0, all of them are sent as they are.
// 2. The others, divided by unit, are rounded to -1, 0 or 1 at random (kernels/codes.h), by numbers that depend on (seed, step,
//    parameter, element, worker) alone: the expectation is exact to 2^-24 of the unit.
//
// A code is nothing if no entry is sent; else the unit, a float; how many are sent as they are and how many as signs, two u16; the first
// ones (entries.h); the places of the others (places.h); and a bit for each of those, 1 where it is negative, zeros behind the last one.
//
// Memory passes: encode reads gradient and residual once, and looks at each chunk a few times in the cache; decode writes zeros and a sum
// for each entry that was sent.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compressors/shared/rounding_tiles.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/entries.h"
#include "compressors/sparsifiers/foreseen.h"
#include "core/bytes.h"
#include "core/scratch.h"
#include "kernels/codes.h"
#include "kernels/selecting.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 43, kWireVersion = 1;
constexpr int kMostRounds = 32;
constexpr float kLeast = std::numeric_limits<float>::denorm_min();
constexpr double kLargest = std::numeric_limits<float>::max();
constexpr std::array<float, 3> kLevels = {-1, 0, 1};
constexpr int kDrawnBits = 2;  // of a level's number

struct Head {
  float unit;
  std::uint16_t exact, drawn;
};
static_assert(sizeof(Head) == 8);

// How a code is laid out.
struct Format {
  Format(std::size_t exact_count, std::size_t drawn_count, std::size_t elements)
      : exact(exact_count, elements, SentAs::kFloat32), drawn(drawn_count, elements), signs((drawn_count + 7) / 8) {}
  std::size_t bytes() const { return sizeof(Head) + exact.bytes() + drawn.bytes() + signs; }

  EntriesCode exact;
  PlaceCode drawn;
  std::size_t signs;  // bytes
};

class Wangni : public ForeseenCodec {
 public:
  Wangni(double density, Reduce reduce) : ForeseenCodec(reduce), density_(density) {}

 private:
  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override { return Format(piece.elements(), 0, piece.elements()).bytes(); }
  // With one entry in four as it is, which few gradients need.
  std::size_t first_bytes(const Piece& piece) const override {
    const std::size_t wanted = kept_entries(density_, piece.elements());
    return Format(wanted / 4, wanted, piece.elements()).bytes();
  }
  std::size_t room_bytes(const Piece& piece, std::size_t /*codes*/) const override {
    const std::size_t n = piece.elements();
    return (kernels::selecting_room(n) + n) * sizeof(std::uint16_t) + kernels::packed_bytes(n, kDrawnBits) +
           kernels::packed_bytes(n, 1);
  }

  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override {
    if (magnitudes.largest == 0) return 0;
    const auto selected = carve<std::uint16_t>(room, kernels::selecting_room(values.size()));
    const auto places = carve<std::uint16_t>(room, values.size());
    const auto packed = carve<std::byte>(room, kernels::packed_bytes(values.size(), kDrawnBits)), signs = room;
    const float unit = unit_of(values);
    const auto exact = selected.first(kernels::select_from(values, std::max(unit, kLeast), selected));
    const EntriesCode exact_code(exact.size(), values.size(), SentAs::kFloat32);
    exact_code.write(values, exact, code.subspan(sizeof(Head), exact_code.bytes()));
    std::size_t draws = 0;
    if (unit > 0) {
      for (const std::uint16_t place : exact) values[place] = 0;
      kernels::divide(values, unit);
      const RandomSequence random = pass == Pass::kFirst ? piece.random : piece.random.second();
      for_each_rounding_tile(values.size(), random, [&](std::size_t first, std::span<const std::uint32_t> words) {
        kernels::assign_randomly(values.subspan(first, words.size()), kLevels, kDrawnBits, words,
                                 packed.subspan(kernels::packed_bytes(first, kDrawnBits), kernels::packed_bytes(words.size(), kDrawnBits)));
      });
      draws = unpack(packed, places, signs);
    }
    if (exact.size() + draws == 0) return 0;
    ByteWriter(code).write(Head{unit, static_cast<std::uint16_t>(exact.size()), static_cast<std::uint16_t>(draws)});
    const Format format(exact.size(), draws, values.size());
    ByteWriter writer(code.subspan(sizeof(Head) + exact_code.bytes(), format.drawn.bytes() + format.signs));
    format.drawn.write(places.first(draws), writer.take(format.drawn.bytes()));
    writer.write_all(std::span<const std::byte>(signs.first(format.signs)));
    return format.bytes();
  }

  // Of packed numbers of kLevels: the places of what is not 0 come first in `places`, with a bit each in signs. Returns how many.
  static std::size_t unpack(std::span<const std::byte> packed, std::span<std::uint16_t> places, std::span<std::byte> signs) {
    // So many are packed together: a plane of the numbers' lower bits, set where the level is 0, and one of the upper.
    constexpr std::size_t kGroup = 16;
    std::ranges::fill(signs, std::byte{0});
    std::size_t found = 0;
    for (std::size_t first = 0; first < places.size(); first += kGroup) {
      const std::size_t count = std::min(kGroup, places.size() - first);
      std::uint32_t planes = 0;
      std::memcpy(&planes, packed.data() + kernels::packed_bytes(first, kDrawnBits), kernels::packed_bytes(count, kDrawnBits));
      const std::uint32_t positive = planes >> count;
      for (std::uint32_t left = ~planes & ((1U << count) - 1); left != 0; left &= left - 1, ++found) {
        const auto i = static_cast<std::size_t>(std::countr_zero(left));
        places[found] = static_cast<std::uint16_t>(first + i);
        if ((positive >> i & 1U) == 0) signs[found / 8] |= std::byte{1} << found % 8;
      }
    }
    return found;
  }

  // 0 if all entries are sent as they are.
  float unit_of(std::span<const float> values) const {
    const auto wanted = static_cast<double>(kept_entries(density_, values.size()));
    float unit = kLeast;
    kernels::Split split = kernels::split_magnitudes(values, unit);
    if (static_cast<double>(split.from) <= wanted) return 0;
    double all = split.below + split.excess + static_cast<double>(split.from) * static_cast<double>(unit);
    std::size_t exact = 0;
    for (int round = 0; round < kMostRounds; ++round) {
      unit = static_cast<float>(std::min(all / (wanted - static_cast<double>(exact)), kLargest));
      split = kernels::split_magnitudes(values, unit);
      if (split.from == exact || static_cast<double>(split.from) >= wanted) break;
      exact = split.from;
      all = split.below;
    }
    return unit;
  }

  void decode(std::span<const std::byte> code, const Piece& /*piece*/, float weight, bool add, std::span<float> values,
              std::span<std::byte> /*room*/) const override {
    if (!add) std::ranges::fill(values, 0.0f);
    if (code.empty()) return;
    ByteReader reader(code, "a chunk of wangni");
    const auto [unit, exact, drawn] = reader.read<Head>();
    if (!(unit >= 0) || !std::isfinite(unit) || std::size_t{exact} + drawn > values.size())
      throw PayloadError("a chunk of wangni has the unit " + std::to_string(unit) + ", " + std::to_string(exact) + " entries as they are and " +
                         std::to_string(drawn) + " as signs; the unit must be finite and not negative, and " + std::to_string(values.size()) +
                         " entries are possible");
    const Format format(exact, drawn, values.size());
    const auto entries = reader.take(format.exact.bytes()), places = reader.take(format.drawn.bytes()), signs = reader.take(format.signs);
    reader.expect_end();
    if ((exact > 0 && !format.exact.check(entries, "wangni")) || (drawn > 0 && !format.drawn.check(places)))
      throw PayloadError("a chunk of wangni has no places for the entries that it says it has");
    if (drawn % 8 != 0 && std::to_integer<unsigned>(signs.back()) >> drawn % 8 != 0)
      throw PayloadError("the signs of a chunk of wangni have bits beyond the last one");
    const float sent = weight * unit;
    format.drawn.read(places, [&](std::size_t j, std::size_t place) {
      const bool is_negative = (std::to_integer<unsigned>(signs[j / 8]) >> j % 8 & 1U) != 0;
      values[place] += is_negative ? -sent : sent;
    });
    format.exact.add(entries, weight, values);
  }

  double density_;
};

}  // namespace

Row wangni_row() {
  Row row;
  row.info = {.name = "wangni",
              .family = Family::kSparsifiers,
              .description = "Wangni et al.: entries kept with probabilities in proportion to their magnitudes, up to 1, and divided by them; "
                             "density is the share that is sent on average",
              .bits = "0.41 at 1 %",
              .wire_id = kWireId,
              .wire_version = kWireVersion,
              .aggregation = Aggregation::kGather,
              .unbiased = true,
              .reference = "Wangni, Wang, Liu, Zhang, NeurIPS 2018, arXiv 1710.09854"};
  row.info.sizes = {"density"};
  row.info.parameters = {density_parameter(), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Wangni>(values.real("density"), reduce_of(values.choice("reduce")));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.real("density");
    claims.lossless = density == 1;
    claims.bits = bits_sent(entry_bits(density, SentAs::kFloat32), values.choice("reduce"));
    claims.lost = 1.05 / density;
    claims.largest *= density;
    return claims;
  };
  row.trials.further = {"density=0.2", "density=0.3,reduce=scatter", "density=1", "density=0.005"};
  return row;
}

}  // namespace thinwire
