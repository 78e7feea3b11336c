// How fast chunks of casq:rate= are encoded and decoded on one core, and how near they come to an ideal coder, in one run:
//
//   build/bench/rate_coder [--runs 9] [--bits 0.25,1,4] gradient.npy ...
//
// Each file is a float32 .npy array whose first row is a gradient; it is repeated up to 16 M entries, far beyond any cache. Printed for each
// rate: the bits really taken, those of an ideal coder that knows each block's class (mean level in half octaves, whose entropy counts) and
// each class's distribution, the error |g - g'|^2 / |g|^2, and GB of float32 a second, also as a share of the rate of only reading memory:
// encoding, encoding with a residual, decoding and adding. Runs of all of them take turns; medians of
// the time that this thread has had of a core. THINWIRE_TARGET=AVX2 forces a SIMD target.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <time.h>

#include "compressors/casq/rate_chunk.h"
#include "compressors/rate_chunk_reference.h"
#include "kernels/targets.h"
#include "tool/npy.h"

namespace {

using thinwire::casq::kMostChunkElements;
using Floats = std::vector<float>;
constexpr std::size_t kRepeated = std::size_t{1} << 24;

// The first row of an array.
Floats read_gradient(const std::string& path) {
  thinwire::tool::NpyArray array = thinwire::tool::read_npy(path);
  if (array.shape.size() > 1) array.values.resize(array.values.size() / array.shape[0]);
  return std::move(array.values);
}

double own_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double seconds_of(const std::function<void()>& work) {
  const double start = own_seconds();
  work();
  return own_seconds() - start;
}

double read_memory(const Floats& values) {
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
  explicit Codec(std::size_t n) : codes_(n / kMostChunkElements + 1, std::vector<std::byte>(thinwire::casq::most_code_bytes(kMostChunkElements))), sizes_(codes_.size()) {}

  std::size_t encode(const Floats& values, float step, Floats* residual) {
    std::size_t bytes = 0, chunk = 0;
    for_each_chunk(values.size(), [&](std::size_t begin, std::size_t n) {
      const auto left = residual != nullptr ? std::span(*residual).subspan(begin, n) : std::span<float>();
      bytes += sizes_[chunk] = encoder_->encode(std::span(values).subspan(begin, n), step, codes_[chunk], left).bytes;
      ++chunk;
    });
    return bytes;
  }
  void decode_add(float step, Floats& sum) {
    std::size_t chunk = 0;
    for_each_chunk(sum.size(), [&](std::size_t begin, std::size_t n) {
      decoder_->read(std::span(codes_[chunk]).first(sizes_[chunk]), n);
      ++chunk;
      decoder_->add(step, 1, std::span(sum).subspan(begin, n));
    });
  }

 private:
  std::unique_ptr<thinwire::casq::ChunkEncoder> encoder_ = std::make_unique<thinwire::casq::ChunkEncoder>();
  std::unique_ptr<thinwire::casq::ChunkDecoder> decoder_ = std::make_unique<thinwire::casq::ChunkDecoder>();
  std::vector<std::vector<std::byte>> codes_;
  std::vector<std::size_t> sizes_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A step at which the codec takes this many bits an entry.
float step_for(const Floats& values, Codec& codec, double bits) {
  float low = 1e-12F, high = 1e6F;
  for (int i = 0; i < 40; ++i) {
    const float step = std::sqrt(low * high);
    const double taken = 8.0 * static_cast<double>(codec.encode(values, step, nullptr)) / static_cast<double>(values.size());
    (taken > bits ? low : high) = step;
  }
  return high;
}

void report(const Floats& gradient, double bits, int runs) {
  Codec codec(kRepeated);
  const float step = step_for(gradient, codec, bits);
  const double n = static_cast<double>(gradient.size()), taken = 8.0 * static_cast<double>(codec.encode(gradient, step, nullptr)) / n;
  Floats residual(gradient.size());
  codec.encode(gradient, step, &residual);
  double left = 0, all = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    left += double{residual[i]} * residual[i];
    all += double{gradient[i]} * gradient[i];
  }
  const double ideal = thinwire::casq::reference::ideal_bits(gradient, step) / n;
  std::printf("%7.3f bits (ideal %7.4f, %+5.1f %%), error %9.3g", taken, ideal, 100 * (taken / ideal - 1), left / all);
  if (runs > 0) {
    Floats values(kRepeated), sum(kRepeated);
    residual.resize(kRepeated);
    for (std::size_t i = 0; i < kRepeated; ++i) values[i] = gradient[i % gradient.size()];
    std::vector<double> read, encode, with_residual, add;
    for (int run = 0; run < runs; ++run) {
      read.push_back(read_memory(values));
      encode.push_back(seconds_of([&] { codec.encode(values, step, nullptr); }));
      with_residual.push_back(seconds_of([&] { codec.encode(values, step, &residual); }));
      add.push_back(seconds_of([&] { codec.decode_add(step, sum); }));
    }
    const auto print = [&](const char* what, const std::vector<double>& seconds) {
      std::printf(", %s %5.2f (%.3f)", what, 4e-9 * kRepeated / median(seconds), median(read) / median(seconds));
    };
    std::printf("; GB/s: read %5.1f", 4e-9 * kRepeated / median(read));
    print("encode", encode);
    print("with residual", with_residual);
    print("decode-add", add);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int runs = 9;
  std::vector<double> rates = {0.25, 1, 4};
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--runs" && i + 1 < argc) {
      runs = std::stoi(argv[++i]);
    } else if (argument == "--bits" && i + 1 < argc) {
      rates.clear();
      std::istringstream list(argv[++i]);
      for (std::string part; std::getline(list, part, ',');) rates.push_back(std::stod(part));
    } else {
      files.push_back(argument);
    }
  }
  if (const char* target = std::getenv("THINWIRE_TARGET")) thinwire::kernels::force_target(target);
  std::printf("%s\n", thinwire::kernels::current_target().c_str());
  for (const std::string& file : files) {
    const Floats gradient = read_gradient(file);
    std::printf("%s, %zu entries\n", file.c_str(), gradient.size());
    for (const double bits : rates) report(gradient, bits, runs);
  }
}
