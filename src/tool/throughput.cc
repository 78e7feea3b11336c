#include "tool/throughput.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "thinwire/reducer.h"
#include "thinwire/registry.h"
#include "thinwire/spec.h"
#include "tool/samples.h"

namespace thinwire::tool {
namespace {

constexpr int kWorkers = 2;

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
  Reducer reducer(bucket_layout(gradient.size(), kBucketElements),
                  {.compressor = spec, .world_size = kWorkers, .threads = threads});
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

}  // namespace thinwire::tool
