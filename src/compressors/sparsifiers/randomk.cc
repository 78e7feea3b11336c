#include "compressors/sparsifiers/randomk.h"

#include <algorithm>
#include <cmath>

#include "compressors/shared/row.h"
#include "compressors/sparsifiers/density.h"
#include "compressors/sparsifiers/strata.h"
#include "compressors/sparsifiers/summed_entries.h"
#include "kernels/rounding.h"

namespace thinwire {

// A message's places: what is sent of each piece, and from where.
class RandomK::Drawn {
 public:
  Drawn(const Options& options, const Work& work, Context& context)
      : options_(options), parts_(work, context, [&](std::size_t i) { return kept_entries(options.density, work.pieces[i].elements()); }),
        words_(context.scratch().take<std::uint32_t>(parts_.count())) {
    for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t) {
      const RandomSequence random = piece.random.common();
      kernels::random_words(random.counter, random.key, of(std::span(words_), i));
    });
  }

  std::size_t count() const { return parts_.count(); }
  // Those of all entries sent that are the i-th piece's.
  template <class T>
  std::span<T> of(std::span<T> sent, std::size_t i) const {
    return parts_.of(sent, i);
  }

  // Calls body(place, factor, value) for each of a piece's entries that are sent. factor: what a sum is multiplied by to be an estimate.
  template <class T, class Body>
  void for_each(const Piece& piece, std::size_t i, std::span<T> sent, const Body& body) const {
    const auto words = of(words_, i);
    const auto values = of(sent, i);
    for_each_drawn(piece.elements(), words, [&](std::size_t j, std::size_t place, std::uint64_t length) {
      body(place, options_.unbiased ? static_cast<float>(length) : 1.0f, values[j]);
    });
  }

 private:
  const Options& options_;
  PieceParts parts_;
  std::span<std::uint32_t> words_;
};

Exchange RandomK::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  const Drawn drawn(options_, work, context);
  Exchange sending = sum_entries(drawn, 1, work, context);
  co_await sending;
}

Row randomk_row() {
  Row row;
  row.info = {.name = "randomk",
              .family = Family::kSparsifiers,
              .description = "random-k, at places drawn alike: of each chunk of up to 32768 entries one in each of k equal parts; no place "
                             "travels, and values add up. feedback=off: unbiased, multiplied by the part's length",
              .bits = "0.32 at 1 %",
              .wire_id = RandomK::kWireId,
              .aggregation = Aggregation::kLinear,
              .contractive = true,
              .reference = "Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv 1809.07599; "
                           "unbiased: Wangni et al., NeurIPS 2018, arXiv 1710.09854"};
  row.info.sizes = {"density"};
  row.info.parameters = {density_parameter(), feedback("on")};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<RandomK>(RandomK::Options{.density = values.real("density"), .unbiased = values.choice("feedback") == "off"});
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    const double density = values.real("density");
    claims.unbiased = values.choice("feedback") == "off";
    claims.lossless = density == 1;
    claims.contractive = claims.lossless || !claims.unbiased;
    claims.on_average = !claims.lossless;
    // A stratum has up to 1/density entries, by which a value is multiplied.
    if (claims.unbiased) claims.largest *= density;
    claims.bits = 32 * density;
    claims.lost = claims.unbiased ? 1.05 / density : 1 - 0.95 * density;  // a sample of 1 % of 8 M
    return claims;
  };
  row.trials.further = {"density=0.5", "density=0.3,feedback=off", "density=1", "density=1,feedback=off", "density=0.005"};
  return row;
}

}  // namespace thinwire
