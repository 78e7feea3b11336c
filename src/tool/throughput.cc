#include "tool/throughput.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>

#include "thinwire/reducer.h"
#include "thinwire/registry.h"
#include "thinwire/spec.h"

namespace thinwire::tool {
namespace {

constexpr int kWorkers = 2;

// Parameters of one bucket each, two-dimensional where that comes out even.
Layout bucket_layout(std::uint64_t elements) {
  constexpr std::uint64_t kRow = 2560;
  std::vector<Parameter> buckets;
  for (std::uint64_t begin = 0; begin < elements; begin += kBucketElements) {
    const std::uint64_t count = std::min(kBucketElements, elements - begin);
    std::vector<std::int64_t> shape = {static_cast<std::int64_t>(count)};
    if (count % kRow == 0) shape = {static_cast<std::int64_t>(count / kRow), static_cast<std::int64_t>(kRow)};
    buckets.push_back({"bucket" + std::to_string(buckets.size()), std::move(shape)});
  }
  return Layout(std::move(buckets));
}

// The other worker's payload is the same as this one's. Sums, maxima and unions are left as they are: that costs
// nothing, and their values do not matter for speed.
void play_both_workers(const Collective& collective) {
  if (collective.result.empty()) return;
  const std::size_t part = collective.result.size() / kWorkers;
  for (std::size_t worker = 0; worker < kWorkers; ++worker)
    std::memcpy(collective.result.data() + worker * part, collective.data.data(), part);
}

void reduce_buckets(Reducer& reducer, std::span<float> gradient) {
  for (std::uint32_t bucket = 0; bucket < reducer.layout().parameters().size(); ++bucket) {
    const Layout& layout = reducer.layout();
    const auto values = gradient.subspan(layout.offset(bucket), layout.parameters()[bucket].elements());
    const std::array gradients = {ParameterGradient{bucket, ElementType::kFloat32, std::as_writable_bytes(values)}};
    Reduction reduction = reducer.reduce(gradients);
    while (const Collective* collective = reduction.next()) play_both_workers(*collective);
  }
}

bool is_gathered(const std::string& spec) {
  const std::string name = Spec::parse(spec).stages.back().name;
  const auto row = std::ranges::find(compressors(), name, &CompressorInfo::name);
  return row != compressors().end() && row->aggregation == Aggregation::kGather;
}

}  // namespace

std::vector<float> gradient_like(std::uint64_t elements) {
  constexpr std::uint64_t kBlock = 4096;
  std::mt19937_64 random(25);
  std::normal_distribution<float> normal;
  std::vector<float> values(elements);
  for (std::uint64_t begin = 0; begin < elements; begin += kBlock) {
    const float scale = 1e-3f * std::exp(normal(random));
    const auto block = std::span(values).subspan(begin, std::min(kBlock, elements - begin));
    std::ranges::generate(block, [&] { return scale * normal(random); });
  }
  return values;
}

double seconds_to_read(std::span<const float> values) {
  constexpr std::size_t kLanes = 32;  // independent sums, so that additions do not wait for each other
  const auto start = std::chrono::steady_clock::now();
  std::array<float, kLanes> lanes{};
  const std::size_t whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  float total = 0;
  for (const float lane : lanes) total += lane;
  for (std::size_t i = whole; i < values.size(); ++i) total += values[i];
  [[maybe_unused]] volatile float kept = total;  // or the loop would be left out
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Throughput measure(const std::string& spec, std::span<const float> gradient, int repetitions, int threads) {
  Reducer reducer(bucket_layout(gradient.size()), {.compressor = spec, .world_size = kWorkers, .threads = threads});
  std::vector<float> buffer(gradient.size());
  std::vector<double> encode, decode;
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    std::ranges::copy(gradient, buffer.begin());
    const Counters before = reducer.counters();
    reduce_buckets(reducer, buffer);
    const Counters after = reducer.counters();
    if (repetition < 0) continue;  // trains clusters and touches memory for the first time
    encode.push_back(after.encode_seconds - before.encode_seconds);
    decode.push_back(after.decode_seconds - before.decode_seconds);
  }
  const double gigabytes = 4e-9 * static_cast<double>(gradient.size());
  return {gigabytes / median(encode), gigabytes * (is_gathered(spec) ? kWorkers : 1) / median(decode)};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace thinwire::tool
