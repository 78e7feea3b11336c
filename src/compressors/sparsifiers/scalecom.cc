// ScaleCom: one worker's largest entries say which ones all send, so that values add up; workers take turns.
// Source: Chen et al., "ScaleCom: scalable sparsified gradient compression for communication-efficient distributed training", NeurIPS 2020,
// algorithm 1 (CLT-k) and equation 5. Symbols: W workers, step t, m the memory, g the gradient, beta (`beta`):
//
//   places of the k largest entries of the leader's m + g; everyone's entries there are summed;
//   m <- (1 - beta) m + beta (m + g - sent)
//
// Published: worker t mod W leads for all that is sent. Here every chunk of the grid has its leader, worker (t + owner) mod W, so that in
// each step all lead and each selects a W-th of the chunks; k = ceil(density n) of a chunk's n entries. m is the residual.
//
// What is sent is a contraction of the leader's values. Of another worker's it is one as far as its largest entries are the leader's: the
// paper measures that they nearly are, since memories become alike. One step may leave all of a worker's values, so that no contraction
// is claimed; each worker leads in every W-th step. beta below 1 is the paper's low-pass filter for large batches: it forgets the share
// 1 - beta of what was not sent, and conserves nothing.
//
// Two rounds: a union of 32-bit words, in which the leaders write their chunks' places (places.h) and all others zeros; a sum of
// float32 (summed_entries.h). Memory passes: gradient and residual are read twice by leaders, else once; and by decoding.
#include <atomic>

#include "compressors/shared/averaging.h"
#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/entries.h"
#include "compressors/sparsifiers/places.h"
#include "compressors/sparsifiers/summed_entries.h"
#include "core/divide.h"
#include "kernels/selecting.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kWireId = 60;
constexpr std::size_t kWordBytes = sizeof(std::uint32_t);

// A message's places: as words to be united, and as they are.
class LedPlaces : public WrittenPlaces {
 public:
  LedPlaces(double density, const Work& work, Context& context)
      : WrittenPlaces({work, context, [&](std::size_t i) { return kept_entries(density, work.pieces[i].elements()); }}, context),
        density_(density),
        word_parts_(work, context, [&](std::size_t i) { return divided_up<std::size_t>(code(work.pieces[i]).bytes(), kWordBytes); }),
        words_(context.scratch().take<std::uint32_t>(word_parts_.count())) {}

  std::span<std::uint32_t> words() const { return words_; }

  // Writes those that this worker leads.
  void lead(const Work& work, Context& context) const {
    const std::size_t longest = longest_piece(work), room = kernels::selecting_room(longest);
    const auto buffers = context.scratch().take<float>(longest * context.threads().threads());
    const auto selecting = context.scratch().take<std::uint16_t>(room * context.threads().threads());
    std::ranges::fill(words_, 0U);
    for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
      if ((piece.step + piece.owner) % static_cast<std::size_t>(context.world_size()) != static_cast<std::size_t>(context.rank())) return;
      const auto values = buffers.subspan(thread * longest, piece.elements());
      read_values(piece, work, values);
      const auto places = places_of(i);
      kernels::select_largest(values, places, selecting.subspan(thread * room, room));
      code(piece).write(places, bytes_of(piece, i));
    });
  }

  // Throws PayloadError if what was united are no places.
  void read(const Work& work, Context& context) const {
    std::atomic<bool> are_places = true;
    for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t) {
      const auto places = places_of(i);
      if (!is_code(piece, bytes_of(piece, i))) return are_places.store(false, std::memory_order_relaxed);
      code(piece).read(bytes_of(piece, i), [&](std::size_t j, std::size_t place) { places[j] = static_cast<std::uint16_t>(place); });
    });
    if (!are_places) throw PayloadError("a chunk of scalecom has no places, or other ones than its leader can have sent");
  }

 private:
  std::size_t kept(const Piece& piece) const { return kept_entries(density_, piece.elements()); }
  PlaceCode code(const Piece& piece) const { return {kept(piece), piece.elements()}; }
  std::span<std::byte> bytes_of(const Piece& piece, std::size_t i) const {
    return std::as_writable_bytes(word_parts_.of(words_, i)).first(code(piece).bytes());
  }
  bool is_code(const Piece& piece, std::span<const std::byte> bytes) const {
    try {
      return kept(piece) == 0 || code(piece).check(bytes);
    } catch (const PayloadError&) {
      return false;
    }
  }

  double density_;
  PieceParts word_parts_;
  std::span<std::uint32_t> words_;
};

class ScaleCom : public Compressor {
 public:
  ScaleCom(double density, float beta) : density_(density), beta_(beta) {}

  Exchange exchange(Work& work, Context& context) const override {
    if (work.elements == 0) co_return;
    const LedPlaces led(density_, work, context);
    led.lead(work, context);
    Await round = context.unite(led.words());
    co_await round;
    led.read(work, context);
    Exchange sending = sum_entries(led, beta_, work, context);
    co_await sending;
  }

 private:
  double density_;
  float beta_;
};

}  // namespace

Row scalecom_row() {
  Row row;
  row.info = {.name = "scalecom",
              .family = Family::kSparsifiers,
              .description = "ScaleCom, places of a leader: of each chunk all workers send the entries that are the largest of one of "
                             "them, who take turns; values add up",
              .bits = "0.41 at 1 %",
              .wire_id = kWireId,
              .aggregation = Aggregation::kLinear,
              .reference = "Chen et al., NeurIPS 2020, arXiv 2104.11125"};
  row.info.sizes = {"density"};
  row.info.parameters = {
      density_parameter(), real("beta", "1", 0.01, 1, "share of what was not sent that is remembered; below 1 the rest is forgotten"),
      feedback("on")};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<ScaleCom>(values.real("density"), static_cast<float>(values.real("beta")));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.real("density");
    claims.lossless = density == 1;
    claims.conserves = values.real("beta") == 1;
    claims.bits = entry_bits(density, SentAs::kFloat32);
    claims.lost = 1 - density;
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.3,beta=0.1", "density=1", "density=0.005"};
  return row;
}

}  // namespace thinwire
