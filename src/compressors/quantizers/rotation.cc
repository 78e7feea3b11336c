#include "compressors/quantizers/rotation.h"

#include <array>

#include "kernels/hadamard.h"
#include "kernels/rounding.h"

namespace thinwire {

Blocks blocks_of(std::size_t elements) {
  Blocks blocks;
  for_each_block(elements, [&](std::size_t, std::size_t length, std::size_t) {
    ++blocks.count;
    blocks.entries += length;
  });
  return blocks;
}

void fill_block(std::span<const float> values, std::span<float> block) {
  std::ranges::fill(std::ranges::copy(values, block.begin()).out, block.end(), 0.0f);
}

void change_signs(std::uint32_t seed, std::size_t first, std::span<float> block) {
  constexpr std::size_t kTile = 2048, kWords = kTile / 32;
  std::array<std::uint32_t, kWords> words;
  for (std::size_t done = 0; done < block.size(); done += kTile) {
    const auto tile = block.subspan(done, std::min(kTile, block.size() - done));
    kernels::random_words({static_cast<std::uint32_t>((first + done) / 32), 0, 0, 0}, {seed, 0x4544454E}, words);
    kernels::negate_where(std::as_bytes(std::span(words)), tile);
  }
}

}  // namespace thinwire
