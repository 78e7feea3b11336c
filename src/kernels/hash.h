// Hashes of small integers, the same on every machine.
#pragma once

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

}  // namespace thinwire::kernels
