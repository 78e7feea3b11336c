// How fast a compressor runs on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace thinwire::tool {

// Seconds to read and add up all values once.
double seconds_to_read(std::span<const float> values);

struct Throughput {
  double encode_gbs = 0;  // GB of float32 gradient a second, medians over repetitions
  double decode_gbs = 0;
};

// One of two workers reduces `gradient`, in buckets, and is handed its own payloads as those of both: in steady state,
// with clusters trained and memory touched. Encoding is all work up to a payload's collective; decoding is the work
// that follows on it, and counts every payload that is decoded (two where payloads are gathered).
Throughput measure(const std::string& spec, std::span<const float> gradient, int repetitions, int threads);

}  // namespace thinwire::tool
