#include "tool/throughput.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>

#include "thinwire/reducer.h"
#include "tool/samples.h"

namespace thinwire::tool {
namespace {

// Two workers whose reductions one thread runs in step. Only the first is measured: the other's messages have to be real, as a
// decoder looks at them.
class Workers {
 public:
  static constexpr int kCount = 2;

  Workers(const std::string& spec, std::span<const float> gradient, int threads) : gradient_(gradient) {
    for (std::size_t rank = 0; rank < reducers_.size(); ++rank) {
      reducers_[rank] = std::make_unique<Reducer>(
          bucket_layout(gradient.size(), kBucketElements),
          ReducerOptions{.compressor = spec, .rank = static_cast<int>(rank), .world_size = kCount, .threads = threads});
      buffers_[rank].resize(gradient.size());
    }
  }

  // What it cost the first to reduce the gradient.
  Counters reduce() {
    for (std::vector<float>& buffer : buffers_) std::ranges::copy(gradient_, buffer.begin());
    const Counters before = reducers_[0]->counters();
    for (std::uint32_t bucket = 0; bucket < reducers_[0]->layout().parameters().size(); ++bucket) reduce(bucket);
    Counters cost = reducers_[0]->counters();
    cost.encode_seconds -= before.encode_seconds;
    cost.decode_seconds -= before.decode_seconds;
    return cost;
  }

  // How many payloads are decoded at the end: all workers' if they were gathered, but one if they went to owners, who have sent means,
  // or were added up.
  int decoded() const { return gathered_ && !scattered_ ? kCount : 1; }

 private:
  using Posted = std::array<const Collective*, kCount>;

  void reduce(std::uint32_t bucket) {
    std::array reductions = {reduction(0, bucket), reduction(1, bucket)};
    const auto next = [&] { return Posted{reductions[0].next(), reductions[1].next()}; };
    for (Posted posted = next(); posted[0] && posted[1]; posted = next()) deliver(posted);
  }

  Reduction reduction(std::size_t rank, std::uint32_t bucket) {
    const Layout& layout = reducers_[rank]->layout();
    const auto values = std::span(buffers_[rank]).subspan(layout.offset(bucket), layout.parameters()[bucket].elements());
    return reducers_[rank]->reduce(std::array{ParameterGradient{bucket, ElementType::kFloat32, std::as_writable_bytes(values)}});
  }

  // Sums and maxima are left as they are: that costs nothing, and their values do not matter for speed. What is united may be places.
  void deliver(const Posted& posted) {
    if (posted[0]->kind == CollectiveKind::kUnite)
      for (std::size_t i = 0; i < posted[0]->data.size(); ++i) posted[0]->data[i] = posted[1]->data[i] |= posted[0]->data[i];
    const bool scatters = posted[0]->kind == CollectiveKind::kScatter;
    scattered_ = scattered_ || scatters;
    gathered_ = gathered_ || posted[0]->kind == CollectiveKind::kGather;
    const std::size_t part = posted[0]->result.size() / kCount;
    if (part == 0) return;
    for (std::size_t to = 0; to < kCount; ++to)
      for (std::size_t from = 0; from < kCount; ++from)
        std::memcpy(posted[to]->result.data() + from * part, posted[from]->data.data() + (scatters ? to * part : 0), part);
  }

  std::span<const float> gradient_;
  std::array<std::unique_ptr<Reducer>, kCount> reducers_;
  std::array<std::vector<float>, kCount> buffers_;
  bool scattered_ = false, gathered_ = false;
};

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
  Workers workers(spec, gradient, threads);
  workers.reduce();  // trains clusters and touches memory for the first time
  std::vector<double> encode, decode;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const Counters cost = workers.reduce();
    encode.push_back(cost.encode_seconds);
    decode.push_back(cost.decode_seconds);
  }
  return {4e-9 * static_cast<double>(gradient.size()), median(encode), median(decode), workers.decoded()};
}

double feedback_gbs(const Throughput& plain, const Throughput& feedback) {
  return feedback.gigabytes / (feedback.encode_seconds + std::max(0.0, feedback.decode_seconds - plain.decode_seconds));
}

}  // namespace thinwire::tool
