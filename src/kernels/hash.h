// Hashes of small integers, the same on every machine.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace thinwire::kernels {

// Every bit of the result depends on every bit of `x` (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// One hash function of a family: another seed, another function.
constexpr std::uint64_t hash(std::uint64_t seed, std::uint64_t key) { return mix(key ^ seed); }

// Which of `buckets` a hash falls into: by its upper half, so that the lower one is free for signs.
constexpr std::uint32_t bucket_of(std::uint64_t hashed, std::uint32_t buckets) {
  return static_cast<std::uint32_t>(((hashed >> 32) * buckets) >> 32);
}

// A permutation of the numbers below n, for each seed another: rounds of steps that can be undone, on as many bits as n - 1 has,
// again and again until the result is below n. n is 1 at least.
class Permutation {
 public:
  constexpr Permutation(std::uint64_t seed, std::uint64_t n) : n_(n) {
    const int bits = static_cast<int>(std::bit_width(n - 1));
    mask_ = bits == 0 ? 0 : ~std::uint64_t{0} >> (64 - bits);
    shift_ = (bits + 1) / 2;
    for (std::uint64_t& key : keys_) key = seed = mix(seed);
  }

  constexpr std::uint64_t operator()(std::uint64_t x) const {
    do {
      for (const std::uint64_t key : keys_) {
        x = (x * (key | 1) + (key >> 32)) & mask_;
        x ^= x >> shift_;
      }
    } while (x >= n_);
    return x;
  }

 private:
  std::uint64_t n_;
  std::uint64_t mask_ = 0;
  int shift_ = 0;
  std::array<std::uint64_t, 4> keys_{};
};

}  // namespace thinwire::kernels
