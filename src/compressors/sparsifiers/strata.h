// Places that all workers draw alike: one in each of as many strata as there are random words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

// Calls body(j, place, length) for each of k words: of n `elements` those from floor(j n / k) up to floor((j + 1) n / k) are stratum j, of
// that length, and one of them is drawn. So places are different, and ascend. Pre: k <= n.
template <class Body>
void for_each_drawn(std::size_t elements, std::span<const std::uint32_t> words, const Body& body) {
  if (words.empty()) return;
  const std::size_t whole = elements / words.size(), rest = elements % words.size();
  std::size_t begin = 0, fraction = 0;  // begin = floor(j n / k), and k times what that leaves out
  for (std::size_t j = 0; j < words.size(); ++j) {
    fraction += rest;
    const bool is_longer = fraction >= words.size();
    if (is_longer) fraction -= words.size();
    const std::uint64_t length = whole + (is_longer ? 1 : 0);
    body(j, begin + static_cast<std::size_t>(words[j] * length >> 32), length);
    begin += length;
  }
}

}  // namespace thinwire
