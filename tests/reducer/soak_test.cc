// Many steps: memory stays flat, workers keep the same bits, and nothing of the gradients is lost.
#include <malloc.h>

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "core/fingerprint.h"
#include "reducer/sample_gradients.h"
#include "reducer/workers.h"
#include "sanitized.h"

namespace thinwire::testing {
namespace {

// Bytes that this process has allocated and not freed. Sanitizers have allocators of their own, and are slow.
std::size_t live_bytes() { return kSanitized ? 0 : mallinfo2().uordblks; }
constexpr int kSteps = kSanitized ? 1000 : 20000;
constexpr int kWarmUp = kSteps / 10, kWorkers = 3;

const Layout& layout() {
  static const Layout instance({{"gathered", {30, 20}}, {"scattered", {50, 10}}, {"halves", {64}}, {"plain", {9}}});
  return instance;
}

ReducerOptions options(int rank) {
  return {.compressor = "casq:bits=2,retrain=500",
          .rules = {{"scattered", "casq:bits=1,retrain=700,reduce=scatter"},
                    {"halves", "bf16:feedback=on"},
                    {"plain", "none"}},
          .rank = rank,
          .world_size = kWorkers};
}

// Nobody goes on before all are here. Whether all came with the same bits.
bool same_on_all(const std::vector<float>& mean, Communicator& communicator) {
  Fingerprint print;
  print.add({reinterpret_cast<const char*>(mean.data()), mean.size() * sizeof(float)});
  std::uint64_t mine = print.value(), all[kWorkers] = {};
  communicator.perform({.kind = CollectiveKind::kGather,
                        .data = std::as_writable_bytes(std::span(&mine, 1)),
                        .result = std::as_writable_bytes(std::span(all))});
  return std::ranges::all_of(all, [mine](std::uint64_t other) { return other == mine; });
}

const Gradients& input(const std::vector<Gradients>& inputs, int step) {
  return inputs[static_cast<std::size_t>(step) % inputs.size()];
}

// What a worker does; returns the sum of its means.
std::vector<double> soak(int rank, Communicator& communicator, const std::vector<Gradients>& inputs) {
  Reducer reducer(layout(), options(rank));
  std::vector<float> gradient(layout().elements());
  const auto parameters = parameters_of(layout(), gradient);
  std::vector<double> sum(gradient.size());
  std::size_t after_warm_up = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::ranges::copy(input(inputs, step)[static_cast<std::size_t>(rank)], gradient.begin());
    for (const auto bucket : {std::span(parameters).first(2), std::span(parameters).subspan(2)}) {
      Reduction reduction = reducer.reduce(bucket);
      run(reduction, communicator);
    }
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(gradient[i]);
    if (!same_on_all(gradient, communicator)) throw Error("means differ in step " + std::to_string(step));
    if (step == kWarmUp) after_warm_up = live_bytes();
  }
  EXPECT_LT(live_bytes(), after_warm_up + 65536) << "a few bytes a step";
  return sum;
}

TEST(Soak, ManySteps) {
  std::vector<Gradients> inputs;
  for (unsigned seed = 1; seed <= 7; ++seed)
    inputs.push_back(make_gradients("laplace", kWorkers, layout().elements(), seed));
  std::vector<double> sum;
  in_parallel(kWorkers, [&](int rank, Communicator& communicator) {
    std::vector<double> mine = soak(rank, communicator, inputs);
    if (rank == 0) sum = std::move(mine);
  });
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    double exact = 0;
    for (int step = 0; step < kSteps; ++step)
      for (const auto& gradient : input(inputs, step)) exact += static_cast<double>(gradient[i]) / kWorkers;
    error += std::pow(sum[i] - exact, 2);
    energy += exact * exact;
  }
  EXPECT_LT(error, 1e-4 * energy);  // what residuals hold, beside the sum of all steps
}

}  // namespace
}  // namespace thinwire::testing
