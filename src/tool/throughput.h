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

// Medians over repetitions.
struct Throughput {
  double gigabytes = 0;  // of float32 gradient
  double encode_seconds = 0;
  double decode_seconds = 0;
  int decoded = 1;  // payloads that decode_seconds are spent on

  double encode_gbs() const { return gigabytes / encode_seconds; }
  double decode_gbs() const { return gigabytes * decoded / decode_seconds; }
};

// GB a second of encoding with error feedback, together with what reading and writing residuals adds to decoding.
double feedback_gbs(const Throughput& plain, const Throughput& feedback);

// One of two workers reduces `gradient`, in buckets, and is handed its own payloads as those of both: in steady state,
// with clusters trained and memory touched. Encoding is all work up to a payload's collective; decoding is the work
// that follows on it, and counts every payload that is decoded (two where payloads are gathered).
Throughput measure(const std::string& spec, std::span<const float> gradient, int repetitions, int threads);

}  // namespace thinwire::tool
