#include "compressors/shared/head.h"

#include <algorithm>
#include <string>

#include "thinwire/errors.h"

namespace thinwire {

Head::Head(const Work& work, Scratch& scratch)
    : has_residuals_(work.feedback), used_(scratch.take<std::uint8_t>(work.pieces.size())) {
  std::ranges::fill(used_, std::uint8_t{0});
}

void Head::read_gathered_word(std::uint32_t word, std::size_t rank) {
  if (word > 1)
    throw PayloadError("the message of worker " + std::to_string(rank) + " begins with " + std::to_string(word) +
                       "; 0 and 1 have a meaning");
  read_word(word);
}

}  // namespace thinwire
