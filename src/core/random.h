// Counter-based random numbers: the number for a counter does not depend on which numbers were drawn before it, so
// workers, chunks and threads agree on them in any order.
#pragma once

#include <array>
#include <cstdint>

namespace thinwire {

// Blocks of Philox one after another, from a counter on, whose first word counts them: kernels::random_words() makes them.
struct RandomSequence {
  std::array<std::uint32_t, 4> counter{};
  std::array<std::uint32_t, 2> key{};

  // What a worker draws for the elements of a parameter from `first` on, in one step: up to two numbers an element, and
  // other ones on every worker.
  static RandomSequence of(std::uint64_t seed, std::uint64_t step, std::uint32_t parameter, std::uint64_t first, int rank) {
    return {{static_cast<std::uint32_t>(first / 2), parameter, static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(rank)},
            {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
  }

  // The part of it that is for the elements from `first` on, an even number.
  RandomSequence from(std::uint64_t first) const {
    RandomSequence rest = *this;
    rest.counter[0] += static_cast<std::uint32_t>(first / 2);
    return rest;
  }

  // The same on every worker, and none of theirs: no group has so many.
  RandomSequence common() const {
    RandomSequence shared = *this;
    shared.counter[3] = 0x7FFFFFFFu;
    return shared;
  }

  // Another one of the same length.
  RandomSequence second() const {
    RandomSequence other = *this;
    other.counter[3] ^= 0x80000000u;
    return other;
  }
};

}  // namespace thinwire
