// What the benchmarks of casq:rate='s encoder share: gradients, chunks, and times on one core.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <time.h>

#include "compressors/casq/rate_chunk.h"
#include "compressors/shared/message.h"
#include "core/aligned.h"
#include "kernels/targets.h"
#include "tool/npy.h"
#include "tool/samples.h"

namespace thinwire::bench {

using casq::kMostChunkElements;
using tool::median;
using Floats = AlignedFloats;
constexpr std::size_t kRepeated = std::size_t{1} << 24;  // entries, far beyond any cache

// The first row of an array.
inline Floats read_gradient(const std::string& path) {
  tool::NpyArray array = tool::read_npy(path);
  const std::size_t count = array.shape.size() > 1 ? array.values.size() / array.shape[0] : array.values.size();
  return {array.values.begin(), array.values.begin() + static_cast<std::ptrdiff_t>(count)};
}

inline double energy(const Floats& values) {
  return std::accumulate(values.begin(), values.end(), 0.0, [](double sum, float value) { return sum + double{value} * value; });
}

inline Floats repeated(const Floats& gradient) {
  Floats values(kRepeated);
  for (std::size_t i = 0; i < kRepeated; ++i) values[i] = gradient[i % gradient.size()];
  return values;
}

inline double own_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
inline double seconds_of(const std::function<void()>& work) {
  const double start = own_seconds();
  work();
  return own_seconds() - start;
}

inline double read_memory(const Floats& values) {
  static volatile std::uint64_t sink;
  return seconds_of([&] {
    constexpr std::size_t kLine = 8, kAhead = 256;  // words
    std::uint64_t sums[kLine] = {}, word;
    const std::size_t words = values.size() / 2;
    for (std::size_t begin = 0; begin + kAhead < words; begin += kLine) {
      __builtin_prefetch(values.data() + 2 * (begin + kAhead));
      for (std::size_t i = 0; i < kLine; ++i) {
        std::memcpy(&word, values.data() + 2 * (begin + i), sizeof word);
        sums[i] += word;
      }
    }
    for (const std::uint64_t sum : sums) sink = sink + sum;
  });
}

template <class Visit>
void for_each_chunk(std::size_t n, const Visit& visit) {
  for (std::size_t begin = 0; begin < n; begin += kMostChunkElements) visit(begin, std::min(kMostChunkElements, n - begin));
}

// All chunks' codes, one behind the other.
class Codec {
 public:
  explicit Codec(std::size_t n) : codes_(n / kMostChunkElements + 1, std::vector<std::byte>(casq::most_code_bytes(kMostChunkElements))), sizes_(codes_.size()) {}

  std::size_t encode(const Floats& values, float step, Floats* residual) {
    std::size_t bytes = 0, chunk = 0;
    for_each_chunk(values.size(), [&](std::size_t begin, std::size_t n) {
      const auto left = residual != nullptr ? std::span(*residual).subspan(begin, n) : std::span<float>();
      bytes += sizes_[chunk] = encoder_->encode(std::span(values).subspan(begin, n), step, codes_[chunk], left, values.size() >= kPastCaches).bytes;
      ++chunk;
    });
    return bytes;
  }
  void decode_add(float step, Floats& sum) {
    std::size_t chunk = 0;
    for_each_chunk(sum.size(), [&](std::size_t begin, std::size_t n) {
      decoder_->unpack(std::span(codes_[chunk]).first(sizes_[chunk]), n).add(step, 1, std::span(sum).subspan(begin, n));
      ++chunk;
    });
  }

 private:
  std::unique_ptr<casq::ChunkEncoder> encoder_ = std::make_unique<casq::ChunkEncoder>();
  std::unique_ptr<casq::ChunkDecoder> decoder_ = std::make_unique<casq::ChunkDecoder>();
  std::vector<std::vector<std::byte>> codes_;
  std::vector<std::size_t> sizes_;
};

// A step at which the codec takes this many bits an entry.
inline float step_for(const Floats& values, Codec& codec, double bits) {
  float low = 1e-12F, high = 1e6F;
  for (int i = 0; i < 40; ++i) {
    const float step = std::sqrt(low * high);
    const double taken = 8.0 * static_cast<double>(codec.encode(values, step, nullptr)) / static_cast<double>(values.size());
    (taken > bits ? low : high) = step;
  }
  return high;
}

// Of kRepeated entries: GB of float32 a second, and the share of what only reading them is.
inline void print_rate(const char* what, const std::vector<double>& seconds, const std::vector<double>& read) {
  std::printf(", %s %5.2f (%.3f)", what, 4e-9 * kRepeated / median(seconds), median(read) / median(seconds));
}

struct Arguments {
  int runs = 9;
  std::vector<double> rates = {0.25, 1, 4};
  std::vector<std::string> files;
};

// [--runs N] [--bits R,R,...] FILE.npy ...; also forces THINWIRE_TARGET, and says which one it is.
inline Arguments read_arguments(int argc, char** argv) {
  Arguments read;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--runs" && i + 1 < argc) {
      read.runs = std::stoi(argv[++i]);
    } else if (argument == "--bits" && i + 1 < argc) {
      read.rates.clear();
      std::istringstream list(argv[++i]);
      for (std::string part; std::getline(list, part, ',');) read.rates.push_back(std::stod(part));
    } else {
      read.files.push_back(argument);
    }
  }
  if (const char* target = std::getenv("THINWIRE_TARGET")) kernels::force_target(target);
  std::printf("%s\n", kernels::current_target().c_str());
  return read;
}

}  // namespace thinwire::bench
