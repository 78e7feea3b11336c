// As many whole steps at random as are asked for (step_trials.h): step_trials STEPS [FIRST_SEED]
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "reducer/step_trials.h"

namespace {

bool read(const char* text, std::uint64_t& number) {
  const char* const end = text + std::strlen(text);
  return std::from_chars(text, end, number).ptr == end && end != text;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t wanted = 0, seed = 0;
  if (argc < 2 || argc > 3 || !read(argv[1], wanted) || (argc == 3 && !read(argv[2], seed))) {
    std::fprintf(stderr, "usage: step_trials STEPS [FIRST_SEED]\n");
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  std::uint64_t steps = 0, failed = 0, told = 0;
  for (const std::uint64_t first = seed; steps < wanted; ++seed) {
    const auto result = thinwire::testing::run_step_trial(seed);
    if (!result.failure.empty()) {
      std::printf("seed %llu: %s\n  %s\n", static_cast<unsigned long long>(seed), result.failure.c_str(), result.description.c_str());
      return 1;
    }
    steps += static_cast<std::uint64_t>(result.steps);
    failed += static_cast<std::uint64_t>(result.failed_steps);
    if (steps < wanted && steps - told < 10000) continue;
    told = steps;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%llu steps from seed %llu on, %llu of workers' steps failed as they must, %.0f s\n", static_cast<unsigned long long>(steps),
                static_cast<unsigned long long>(first), static_cast<unsigned long long>(failed), seconds);
    std::fflush(stdout);
  }
}
