#include "tool/plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "thinwire/errors.h"
#include "tool/table.h"

namespace thinwire::tool {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr std::array kRates = {Unit{"gbit", 1e9}, Unit{"mbit", 1e6}, Unit{"kbit", 1e3}};
constexpr std::array kTimes = {Unit{"ns", 1e-9}, Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1}};

// A number without sign and exponent, and a unit; null if `text` is something else.
std::optional<double> parse(const std::string& text, std::span<const Unit> units) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, problem] = std::from_chars(text.data(), last, number, std::chars_format::fixed);
  if (problem != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  const auto unit = std::ranges::find(units, std::string_view(end, last), &Unit::name);
  if (unit == units.end()) return std::nullopt;
  return number * unit->factor;
}

Parameter matrix(std::string name, std::uint64_t elements) {
  std::uint64_t rows = 1;
  while (elements % (2 * rows) == 0 && 4 * rows * rows <= elements) rows *= 2;
  return {std::move(name), {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(elements / rows)}};
}

// Through (x0, y0) and (x1, y1).
double on_line(double x, double x0, double y0, double x1, double y1) { return y0 + (y1 - y0) * (x - x0) / (x1 - x0); }

BucketCost scaled(BucketCost cost, double factor) {
  cost.encode_seconds *= factor;
  cost.between_seconds *= factor;
  cost.decode_seconds *= factor;
  cost.bytes *= factor;
  return cost;
}

template <class Change>
double seconds_if(ModelledStep step, Change change) {
  for (BucketCost& bucket : step.buckets) change(bucket);
  return step.time().seconds;
}

}  // namespace

double parse_rate(const std::string& text) {
  const std::optional<double> rate = parse(text, kRates);
  if (!rate || *rate == 0)
    throw ArgumentError("'" + text + "' is not a rate; it must be bits a second above 0 in kbit, mbit or gbit, such as 100mbit or 2.5gbit");
  return *rate / 8;
}

double parse_time(const std::string& text) {
  const std::optional<double> time = parse(text, kTimes);
  if (!time) throw ArgumentError("'" + text + "' is not a time; it must be a number in ns, us, ms or s, such as 200us or 1.5ms");
  return *time;
}

Hosts parse_hosts(const std::string& text) {
  Hosts hosts;
  const char* const last = text.data() + text.size();
  const auto [by, problem] = std::from_chars(text.data(), last, hosts.count);
  const bool is_pair = problem == std::errc() && by != last && *by == 'x';
  const auto [end, its_problem] = is_pair ? std::from_chars(by + 1, last, hosts.workers) : std::from_chars_result{by, std::errc::invalid_argument};
  if (its_problem != std::errc() || end != last || hosts.count < 2 || hosts.workers < 2 || hosts.workers > kMostOfAHost ||
      hosts.count > kMostPlanned / hosts.workers)
    throw ArgumentError("'" + text + "' is not hosts x workers of each, such as 4x8; allowed: 2 hosts or more, 2 to " +
                        std::to_string(kMostOfAHost) + " workers of each, " + std::to_string(kMostPlanned) + " altogether");
  return hosts;
}

std::string short_rate(double bytes_per_second) {
  double rate = 8e-3 * bytes_per_second;
  constexpr std::array kUnits = {" kb/s", " Mb/s", " Gb/s", " Tb/s"};
  std::size_t unit = 0;
  for (; rate >= 999.5 && unit + 1 < kUnits.size(); ++unit) rate /= 1000;
  return short_number(rate) + kUnits[unit];
}

BucketSizes bucket_sizes(std::optional<double> mb) {
  if (!mb) return {};
  const std::uint64_t elements = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(*mb * 262'144)));
  return {elements, elements};
}

Buckets ddp_buckets(const Layout& layout, const BucketSizes& sizes) {
  const auto& forward = layout.parameters();
  return fill_buckets(Layout({forward.rbegin(), forward.rend()}), sizes.others, sizes.first);
}

Layout even_layout(std::uint64_t elements, const BucketSizes& sizes) {
  std::vector<Parameter> parameters;
  std::uint64_t size = sizes.first;
  for (std::uint64_t left = elements; left > 0; size = sizes.others) {
    size = std::min(size, left);
    parameters.push_back(matrix("bucket" + std::to_string(parameters.size()), size));
    left -= size;
  }
  std::ranges::reverse(parameters);
  return Layout(std::move(parameters));
}

std::vector<std::uint64_t> bucket_elements(const Buckets& buckets) {
  std::vector<std::uint64_t> elements;
  std::uint64_t begin = 0;
  for (const std::uint32_t end : buckets.ends) {
    const Parameter& last = buckets.layout.parameters()[end - 1];
    const std::uint64_t behind = buckets.layout.offset(end - 1) + last.elements();
    elements.push_back(behind - begin);
    begin = behind;
  }
  return elements;
}

std::vector<double> ready_seconds(std::span<const std::uint64_t> elements, double compute_seconds, double forward_share) {
  const auto all = static_cast<double>(std::accumulate(elements.begin(), elements.end(), std::uint64_t{0}));
  std::vector<double> ready;
  std::uint64_t done = 0;
  for (const std::uint64_t each : elements) {
    done += each;
    ready.push_back(compute_seconds * std::min(1.0, forward_share + (1 - forward_share) * static_cast<double>(done) / all));
  }
  return ready;
}

Sample sample_of(const Buckets& buckets) {
  constexpr std::uint64_t kLittle = 2'097'152, kStandIn = 4'194'304;
  const std::vector<std::uint64_t> elements = bucket_elements(buckets);
  const auto& parameters = buckets.layout.parameters();
  std::vector<Parameter> sampled;
  std::vector<std::uint32_t> ends;
  std::vector<std::size_t> numbers;
  std::uint64_t taken = 0;
  for (std::size_t number = 0; number < elements.size(); ++number) {
    if (taken + elements[number] > kMostSampled) continue;
    taken += elements[number];
    const std::uint32_t begin = number == 0 ? 0 : buckets.ends[number - 1];
    sampled.insert(sampled.end(), parameters.begin() + begin, parameters.begin() + buckets.ends[number]);
    ends.push_back(static_cast<std::uint32_t>(sampled.size()));
    numbers.push_back(number);
  }
  if (numbers.size() < elements.size() && taken < kLittle) {
    sampled.push_back(matrix("what stands for the other buckets", kStandIn));
    ends.push_back(static_cast<std::uint32_t>(sampled.size()));
  }
  return {{Layout(std::move(sampled)), std::move(ends)}, std::move(numbers)};
}

std::vector<BucketCost> spread(const Sample& sample, std::span<const BucketCost> measured, std::span<const std::uint64_t> elements) {
  BucketCost sum;
  for (const BucketCost& cost : measured) {
    sum.encode_seconds += cost.encode_seconds;
    sum.between_seconds += cost.between_seconds;
    sum.decode_seconds += cost.decode_seconds;
    sum.bytes += cost.bytes;
  }
  const std::vector<std::uint64_t> sampled = bucket_elements(sample.buckets);
  const BucketCost& largest = measured[static_cast<std::size_t>(std::ranges::max_element(sampled) - sampled.begin())];
  sum.rounds = largest.rounds;
  sum.hops = largest.hops;
  std::vector<BucketCost> costs;
  const auto all = static_cast<double>(sample.elements());
  for (const std::uint64_t each : elements) costs.push_back(scaled(sum, static_cast<double>(each) / all));
  for (std::size_t i = 0; i < sample.numbers.size(); ++i) costs[sample.numbers[i]] = measured[i];
  return costs;
}

BucketCost extrapolate(const TriedWorkers& fewer, const TriedWorkers& more, int workers, std::uint64_t chunks) {
  const double few = fewer.workers, many = more.workers, all = workers;
  const double to_fewer = fewer.cost.bytes / (few - 1), to_more = more.cost.bytes / (many - 1);
  constexpr double kNoise = 1.1, kShrinks = 0.75;  // of what is measured; of bytes for each other
  const bool in_parts = to_more < kShrinks * to_fewer;
  const auto seconds = [&](double BucketCost::* part) {
    const double before = fewer.cost.*part, after = more.cost.*part;
    return in_parts || after <= kNoise * before ? after : on_line(all, few, before, many, after);
  };
  BucketCost cost = more.cost;
  cost.encode_seconds = seconds(&BucketCost::encode_seconds);
  cost.between_seconds = seconds(&BucketCost::between_seconds);
  cost.decode_seconds = seconds(&BucketCost::decode_seconds);
  cost.hops = static_cast<int>(std::lround(on_line(all, few, fewer.cost.hops, many, more.cost.hops)));  // of rings as many as bytes would have it
  const bool goes_straight = more.cost.hops == more.cost.rounds;  // to owners, or to everybody
  const auto part = [&](double parts, std::uint64_t of) {
    return goes_straight ? std::ceil(static_cast<double>(of) / parts) / static_cast<double>(of) : 1 / parts;
  };
  const double of_few = part(few, fewer.chunks), of_many = part(many, more.chunks);
  cost.bytes = (all - 1) * (of_few != of_many ? std::max(0.0, on_line(part(all, chunks), of_few, to_fewer, of_many, to_more)) : to_more);
  return cost;
}

Link choosing_alike(const Link& link, int tried, int workers) {
  const auto saved = [](double w) { return (w - 1) * (w - 2) / w; };
  return {link.bytes_per_second * saved(tried) / saved(workers), link.round_seconds};
}

double ModelledStep::seconds_at(double bytes_per_second) const {
  StepCost on = cost;
  on.link.bytes_per_second = bytes_per_second;
  return predict_step(on, buckets).seconds;
}

double pays_below(const ModelledStep& step, const ModelledStep& plain) {
  constexpr double kSlowest = 125, kFastest = 1.25e14;  // 1 kb/s, 1,000 Tb/s
  constexpr int kHalvings = 60;
  const auto pays = [&](double bytes_per_second) { return step.seconds_at(bytes_per_second) < plain.seconds_at(bytes_per_second); };
  if (!pays(kSlowest)) return 0;
  if (pays(kFastest)) return std::numeric_limits<double>::infinity();
  double low = kSlowest, high = kFastest;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    (pays(middle) ? low : high) = middle;
  }
  return low;
}

Limit limit_of(const ModelledStep& step) {
  constexpr double kHardly = 1.02;
  if (step.time().seconds <= kHardly * step.cost.compute_seconds) return Limit::kComputation;
  const double codec = seconds_if(step, [](BucketCost& bucket) { bucket.encode_seconds = bucket.between_seconds = bucket.decode_seconds = 0; });
  const double link = step.seconds_at(std::numeric_limits<double>::infinity());
  ModelledStep without_sending = step;
  without_sending.cost.sending_seconds = 0;
  const double sending = without_sending.time().seconds;
  const double rounds = seconds_if(step, [](BucketCost& bucket) { bucket.rounds = 0; });
  return std::min({std::pair(codec, Limit::kCodec), std::pair(sending, Limit::kSending), std::pair(link, Limit::kLink), std::pair(rounds, Limit::kRounds)}).second;
}

const char* name_of(Limit limit) {
  constexpr std::array kNames = {"computation", "codec", "sending", "link", "rounds"};
  return kNames[static_cast<std::size_t>(limit)];
}

}  // namespace thinwire::tool
