// Random-k: of each chunk some entries at places that all workers draw alike, so that no place travels and values add up in all-reduce.
//
// Source: Stich, Cordonnier, Jaggi: "Sparsified SGD with memory", NeurIPS 2018, definition 2.1 (rand_k); without feedback Wangni, Wang,
// Liu, Zhang: "Gradient sparsification for communication-efficient distributed optimization", NeurIPS 2018, section 2, with the same
// probability for all. Symbols: d entries, of which k are sent; here for each chunk of the grid, d = n <= 32,768, k = ceil(density n).
//
// 1. The chunk is cut into k strata: stratum j has the entries from floor(j n / k) up to floor((j + 1) n / k), and one of them is drawn.
//    So places are different, ascend, and need no sorting, and an entry of a stratum of s is drawn with probability 1/s. Random numbers
//    depend on (seed, step, parameter, chunk), and not on the worker: drawn word x is place floor(x s / 2^32), exact to
//    a share of s / 2^32.
// 2. feedback=on: values are sent as they are: in expectation |v - v'|^2 <= (1 - 1/s) |v|^2, with s = ceil(n/k); an entry waits
//    in the residual for s steps on average.
// 3. feedback=off: the sum of a stratum's values is multiplied by its s, so that the mean is unbiased: E|v - v'|^2 <= (s - 1) |v|^2.
//
// Values are divided by the least power of two that is no less than the number of workers, so that no sum of them overflows.
//
// One all-reduce of k float32 a chunk, and of 32 bits a message, with feedback 32 a chunk more (shared/head.h).
//
// Memory passes: encode reads gradient and residual once; decode writes zeros and k means, and with feedback reads both again.
#pragma once

#include "compressors/shared/compressor.h"

namespace thinwire {

class RandomK : public Compressor {
 public:
  static constexpr std::uint8_t kWireId = 41;

  struct Options {
    double density = 0.01;
    bool unbiased = false;  // values are multiplied by their strata's lengths
  };
  explicit RandomK(const Options& options) : options_(options) {}

  Exchange exchange(Work& work, Context& context) const override;

 private:
  class Drawn;
  Options options_;
};

}  // namespace thinwire
