// How near gradiveq's encoding and decoding come to the rate of plain matrix products, in one thread, in one run:
//
//   build/bench/gradiveq_rate [spec]
//
// 23.4 M floats in convolutions like ResNet-50's. Printed: OpenBLAS's rate for a square product of 1,024 rows, and that of the 2 n d flops
// of projecting and of reconstructing, each with everything around it (opening pieces, copies, division), medians of 21 runs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <cblas.h>

#include "thinwire/thinwire.h"

namespace {

constexpr int kRuns = 21;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double product_gflops() {
  constexpr int n = 1024;
  std::vector<float> a(n * n, 0.5f), b(n * n, 0.25f), c(n * n);
  std::vector<double> seconds;
  openblas_set_num_threads(1);
  for (int run = 0; run <= kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a.data(), n, b.data(), n, 0, c.data(), n);
    if (run > 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2e-9 * double{n} * n * n / median(seconds);
}

thinwire::Layout resnet_like() {
  std::vector<thinwire::Parameter> parameters;
  const auto add = [&](int count, std::int64_t out, std::int64_t in, std::int64_t kernel) {
    for (int i = 0; i < count; ++i)
      parameters.push_back({"layer" + std::to_string(parameters.size()), {out, in, kernel, kernel}});
  };
  add(3, 64, 64, 3);
  add(4, 128, 128, 3);
  add(6, 256, 256, 3);
  add(3, 512, 512, 3);
  add(6, 64, 256, 1);
  add(8, 512, 128, 1);
  add(12, 1024, 256, 1);
  add(6, 2048, 512, 1);
  add(1, 1000, 2048, 1);
  return thinwire::Layout(parameters);
}

void run_once(thinwire::Reducer& reducer, std::vector<float>& gradient, thinwire::Communicator& communicator) {
  std::vector<thinwire::ParameterGradient> gradients;
  const thinwire::Layout& layout = reducer.layout();
  for (std::size_t i = 0; i < layout.parameters().size(); ++i)
    gradients.push_back({static_cast<std::uint32_t>(i), thinwire::ElementType::kFloat32,
                         std::as_writable_bytes(std::span(gradient).subspan(layout.offset(i), layout.parameters()[i].elements()))});
  thinwire::Reduction reduction = reducer.reduce(gradients);
  thinwire::run(reduction, communicator);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string spec = argc > 1 ? argv[1] : "gradiveq:ratio=16,learn=1,lag=0,use=1000000";
  const thinwire::Layout layout = resnet_like();
  thinwire::Reducer reducer(layout, {.compressor = spec});
  const auto communicators = thinwire::make_local_communicators(1);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(layout.elements());
  for (float& value : values) value = normal(random);
  std::vector<double> encode, decode;
  double sent = 0;
  for (int run = -2; run < kRuns; ++run) {
    std::vector<float> gradient = values;
    const thinwire::Counters before = reducer.counters();
    run_once(reducer, gradient, *communicators[0]);
    const thinwire::Counters after = reducer.counters();
    if (run < 0) continue;  // learns, and makes the bases
    encode.push_back(after.encode_seconds - before.encode_seconds);
    decode.push_back(after.decode_seconds - before.decode_seconds);
    sent = static_cast<double>(after.payload_bytes - before.payload_bytes) / 4;
  }
  // Every coefficient takes 2 K flops, and K times their number is n d.
  double flops = 0;
  for (const thinwire::Parameter& parameter : layout.parameters()) {
    const double row = static_cast<double>(parameter.elements()) / static_cast<double>(parameter.shape[0]);
    const double parts = std::ceil(row / 576), k = std::ceil(row / static_cast<double>(parameter.shape[2] * parameter.shape[3]) / parts) *
                                                   static_cast<double>(parameter.shape[2] * parameter.shape[3]);
    flops += 2 * static_cast<double>(parameter.elements()) * std::round(k / 16);
  }
  const double rate = product_gflops();
  std::printf("%.1f M floats in %zu layers, %.2f M coefficients: %s\n", static_cast<double>(layout.elements()) * 1e-6,
              layout.parameters().size(), sent * 1e-6, spec.c_str());
  std::printf("product of 1024 x 1024   %6.1f Gflop/s\n", rate);
  std::printf("encode  %6.1f ms         %6.1f Gflop/s  %.2f of it\n", 1e3 * median(encode), 1e-9 * flops / median(encode), 1e-9 * flops / median(encode) / rate);
  std::printf("decode  %6.1f ms         %6.1f Gflop/s  %.2f of it\n", 1e3 * median(decode), 1e-9 * flops / median(decode), 1e-9 * flops / median(decode) / rate);
}
