// Counter-based random numbers: the number for a counter does not depend on which numbers were drawn before it, so
// workers, chunks and threads agree on them in any order.
#pragma once

#include <array>
#include <cstdint>

namespace thinwire {

// Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
class Philox {
 public:
  using Block = std::array<std::uint32_t, 4>;

  // The blocks of (seed, step), numbered by an index.
  Philox(std::uint64_t seed, std::uint64_t step)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        step_{static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32)} {}

  Block block(std::uint64_t index) const {
    return generate({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), step_[0], step_[1]}, key_);
  }

  static constexpr Block generate(Block counter, std::array<std::uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t even = std::uint64_t{0xD2511F53} * counter[0];
      const std::uint64_t odd = std::uint64_t{0xCD9E8D57} * counter[2];
      counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(odd),
                 static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(even)};
      key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
    }
    return counter;
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 2> step_;
};

// Blocks of Philox one after another, from a counter on, whose first word counts them.
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

  // Another one of the same length.
  RandomSequence second() const {
    RandomSequence other = *this;
    other.counter[3] ^= 0x80000000u;
    return other;
  }
};

}  // namespace thinwire
