// How fast chunks of casq:rate= are encoded and decoded on one core, and how near they come to an ideal coder, in one run:
//
//   build/bench/rate_coder [--runs 9] [--bits 0.25,1,4] gradient.npy ...
//
// Each file is a float32 .npy array whose first row is a gradient; it is repeated up to 16 M entries, far beyond any cache. Printed for each
// rate: the bits really taken, those of an ideal coder that knows each block's class (mean level in half octaves, whose entropy counts) and
// each class's distribution, the error |g - g'|^2 / |g|^2, and GB of float32 a second, also as a share of the rate of only reading memory:
// encoding, encoding with a residual, decoding and adding. Runs of all of them take turns; medians of
// the time that this thread has had of a core. THINWIRE_TARGET=AVX2 forces a SIMD target.
#include <cstdio>
#include <string>
#include <vector>

#include "bench/rate_measuring.h"
#include "compressors/rate_chunk_reference.h"

namespace {

using namespace thinwire::bench;

void report(const Floats& gradient, double bits, int runs) {
  Codec codec(kRepeated);
  const float step = step_for(gradient, codec, bits);
  const double n = static_cast<double>(gradient.size()), taken = 8.0 * static_cast<double>(codec.encode(gradient, step, nullptr)) / n;
  Floats residual(gradient.size());
  codec.encode(gradient, step, &residual);
  const double ideal = thinwire::casq::reference::ideal_bits(gradient, step) / n;
  std::printf("%7.3f bits (ideal %7.4f, %+5.1f %%), error %9.3g", taken, ideal, 100 * (taken / ideal - 1), energy(residual) / energy(gradient));
  if (runs > 0) {
    const Floats values = repeated(gradient);
    Floats sum(kRepeated);
    residual.resize(kRepeated);
    std::vector<double> read, encode, with_residual, add;
    for (int run = 0; run < runs; ++run) {
      read.push_back(read_memory(values));
      encode.push_back(seconds_of([&] { codec.encode(values, step, nullptr); }));
      with_residual.push_back(seconds_of([&] { codec.encode(values, step, &residual); }));
      add.push_back(seconds_of([&] { codec.decode_add(step, sum); }));
    }
    std::printf("; GB/s: read %5.1f", 4e-9 * kRepeated / median(read));
    print_rate("encode", encode, read);
    print_rate("with residual", with_residual, read);
    print_rate("decode-add", add, read);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = read_arguments(argc, argv);
  for (const std::string& file : arguments.files) {
    const Floats gradient = read_gradient(file);
    std::printf("%s, %zu entries\n", file.c_str(), gradient.size());
    for (const double bits : arguments.rates) report(gradient, bits, arguments.runs);
  }
}
