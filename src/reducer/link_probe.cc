#include "reducer/link_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <limits>
#include <vector>

namespace thinwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 8;                                // the quickest counts: others met a busy processor
constexpr std::size_t kFirstBytes = std::size_t{1} << 16;  // that a worker sends to each other one
constexpr std::size_t kMostSent = std::size_t{1} << 25;    // altogether, and so received
constexpr float kLongEnough = 0.03f;                       // seconds; networks let short bursts pass faster

float since(Clock::time_point begin) { return std::chrono::duration<float>(Clock::now() - begin).count(); }

}  // namespace

Exchange probe_link(Context& context, Link& found) {
  if (context.world_size() == 1) co_return;
  const auto others = static_cast<std::size_t>(context.world_size() - 1);
  context.purpose = Purpose::kSetup;
  std::array<float, 1> slowest = {std::numeric_limits<float>::infinity()};
  for (int round = 0; round < kRounds; ++round) {
    std::array<float, 1> nothing = {};
    const Clock::time_point begin = Clock::now();
    Await asked = context.max(nothing);
    co_await asked;
    slowest[0] = std::min(slowest[0], since(begin));
  }
  Await agreed_round = context.max(slowest);
  co_await agreed_round;
  const float round_seconds = slowest[0];

  const std::size_t most = std::max(kMostSent / others, kFirstBytes);
  std::vector<std::byte> mine(kFirstBytes), all(kFirstBytes * (others + 1));  // not of the lane's scratch, which stays
  Await opening = context.gather(mine, all);  // connections
  co_await opening;
  for (std::size_t bytes = kFirstBytes;; bytes = std::min(4 * bytes, most)) {
    mine.resize(bytes);
    all.resize(bytes * (others + 1));
    const Clock::time_point begin = Clock::now();
    Await sent = context.gather(mine, all);
    co_await sent;
    slowest[0] = since(begin);
    Await agreed = context.max(slowest);
    co_await agreed;
    if (slowest[0] < kLongEnough && bytes < most) continue;
    const double moving = std::max(static_cast<double>(slowest[0]) - static_cast<double>(round_seconds), 1e-9);
    found = {.bytes_per_second = static_cast<double>(bytes * others) / moving,
             .round_seconds = static_cast<double>(round_seconds)};
    co_return;
  }
}

}  // namespace thinwire
