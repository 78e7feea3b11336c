#include "compressors/gradiveq/bit_allocation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "compressors/gradiveq/transform_code.h"

namespace thinwire {
namespace {

constexpr std::int32_t kFewLevels = 64;  // up to which the error is added up level by level

double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double upper_tail(double x) { return std::erfc(x / std::numbers::sqrt2) / 2; }

// E (x - q(x))^2 = 1 - 2 E x q(x) + E q(x)^2, with thresholds at half steps.
double error_of_steps(double step, std::int32_t levels) {
  double error = 1;
  for (std::int32_t k = 1; k <= levels; ++k) {
    const double threshold = (k - 0.5) * step;
    error += -4 * step * density(threshold) + 2 * step * step * (2 * k - 1) * upper_tail(threshold);
  }
  return error;
}

// With many levels: a uniform error within the range and a normal tail beyond it.
double error_of_many(double step, std::int32_t levels) {
  const double end = (levels + 0.5) * step;
  return step * step / 12 + 4 * density(end) / (end * end * end);
}

// One point of the lower convex hull of (width, error) to the next.
struct Upgrade {
  int width = 0;     // after it
  double slope = 0;  // what it saves a bit
};

std::vector<Upgrade> upgrades_along_hull(const std::vector<double>& errors) {
  std::vector<Upgrade> upgrades;
  for (std::size_t from = 0; from + 1 < errors.size();) {
    std::size_t best = from + 1;
    const auto slope = [&](std::size_t to) { return (errors[from] - errors[to]) / static_cast<double>(to - from); };
    for (std::size_t to = from + 2; to < errors.size(); ++to)
      if (slope(to) > slope(best)) best = to;
    if (!(slope(best) > 0)) break;
    upgrades.push_back({static_cast<int>(best), slope(best)});
    from = best;
  }
  return upgrades;
}

// Whether FieldPlan finds room for `group` fields of each width in so many words: as it looks for it, but only counting.
class Room {
 public:
  Room(std::span<const int> widths, std::size_t group, std::size_t words) : group_(group), words_(words) {
    for (const int width : widths) ++fields_[static_cast<std::size_t>(width)];
  }
  void replace(int width, int by) {
    --fields_[static_cast<std::size_t>(width)];
    ++fields_[static_cast<std::size_t>(by)];
  }
  bool is_enough() const {
    std::array<std::size_t, kWordBits + 1> words_with_room{};
    words_with_room[kWordBits] = words_;
    for (std::size_t width = kWordBits; width > 0; --width)
      for (std::size_t fields = fields_[width] * group_; fields > 0; --fields) {
        std::size_t room = width;
        while (room <= kWordBits && words_with_room[room] == 0) ++room;
        if (room > kWordBits) return false;
        --words_with_room[room];
        ++words_with_room[room - width];
      }
    return true;
  }

 private:
  static constexpr std::size_t kWordBits = 32;
  std::size_t group_, words_;
  std::array<std::size_t, kWordBits + 1> fields_{};  // of each width
};

// Which component is upgraded to which point of the hull, from the most useful upgrade on.
struct Turn {
  std::size_t component = 0;
  std::size_t upgrade = 0;
};

std::vector<Turn> turns(std::span<const float> variances, const std::vector<Upgrade>& upgrades) {
  std::vector<Turn> turns;
  for (std::size_t u = 0; u < upgrades.size(); ++u)
    for (std::size_t c = 0; c < variances.size(); ++c)
      if (variances[c] > 0) turns.push_back({c, u});
  const auto saved = [&](const Turn& turn) { return static_cast<double>(variances[turn.component]) * upgrades[turn.upgrade].slope; };
  std::ranges::stable_sort(turns, [&](const Turn& a, const Turn& b) { return saved(a) > saved(b); });
  return turns;
}

}  // namespace

std::int32_t levels_of(int width, int world_size) { return ((1 << width) - 1) / 2 / world_size; }

NormalQuantizer normal_quantizer(std::int32_t levels) {
  if (levels < 1) return {};
  const auto error = [&](double step) { return levels <= kFewLevels ? error_of_steps(step, levels) : error_of_many(step, levels); };
  // The error has one minimum between a range of one deviation and one of eight.
  double low = 1 / (levels + 0.5), high = 8 / (levels + 0.5);
  const double golden = (std::sqrt(5.0) - 1) / 2;
  for (int i = 0; i < 60; ++i) {
    const double a = high - golden * (high - low), b = low + golden * (high - low);
    (error(a) < error(b) ? high : low) = error(a) < error(b) ? b : a;
  }
  return {low, error(low)};
}

BitAllocation allocate_bits(std::span<const float> variances, std::size_t group, std::size_t words, int world_size) {
  std::vector<double> errors;
  for (int width = 0; width <= kWidestField; ++width) errors.push_back(normal_quantizer(levels_of(width, world_size)).error);
  const std::vector<Upgrade> upgrades = upgrades_along_hull(errors);
  const std::vector<Turn> order = turns(variances, upgrades);
  const auto widths_after = [&](std::size_t count) {
    std::vector<int> widths(variances.size());
    for (const Turn& turn : std::span(order).first(count)) widths[turn.component] = upgrades[turn.upgrade].width;
    return widths;
  };
  // The longest beginning that fits, and of what follows what still does.
  std::size_t taken = 0, beyond = order.size() + 1;
  while (beyond - taken > 1) {
    const std::size_t middle = taken + (beyond - taken) / 2;
    (Room(widths_after(middle), group, words).is_enough() ? taken : beyond) = middle;
  }
  std::vector<int> widths = widths_after(taken);
  Room room(widths, group, words);
  for (const Turn& turn : std::span(order).subspan(taken)) {
    int& width = widths[turn.component];
    const int before = width, after = upgrades[turn.upgrade].width;
    if (before != (turn.upgrade == 0 ? 0 : upgrades[turn.upgrade - 1].width)) continue;
    room.replace(before, after);
    if (room.is_enough()) width = after;
    else room.replace(after, before);
  }
  std::ranges::sort(widths, std::greater<>());

  BitAllocation allocation;
  allocation.error = std::accumulate(variances.begin(), variances.end(), 0.0);
  for (std::size_t c = 0; c < widths.size() && widths[c] > 0; ++c) {
    const NormalQuantizer quantizer = normal_quantizer(levels_of(widths[c], world_size));
    allocation.widths.push_back(widths[c]);
    allocation.steps.push_back(static_cast<float>(quantizer.step));
    allocation.error -= static_cast<double>(variances[c]) * (1 - quantizer.error);
  }
  return allocation;
}

}  // namespace thinwire
