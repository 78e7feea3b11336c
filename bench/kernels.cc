// How fast kernels go through memory: GB of fp32 gradient a second on one core, beside the rate at which this core
// reads memory at all. For figures that mean something on a shared machine:
//
//   bench_kernels --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true
//     --benchmark_report_aggregates_only=true
//
// THINWIRE_TARGET=AVX2 in the environment forces a SIMD target.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/checksum.h"
#include "kernels/codes.h"
#include "kernels/committing.h"
#include "kernels/half.h"
#include "kernels/hadamard.h"
#include "kernels/opening.h"
#include "kernels/rounding.h"
#include "kernels/rows.h"
#include "kernels/selecting.h"
#include "kernels/statistics.h"
#include "kernels/targets.h"

namespace thinwire::kernels {
namespace {

constexpr std::size_t kElements = 25'600'000;  // ResNet-50's gradient: far beyond any cache
constexpr std::size_t kPiece = 32768;          // 128 KiB: stays in a core's second-level cache

std::vector<float> random_floats(std::size_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> period(100'003), values(n);
  for (float& x : period) x = normal(random);
  for (std::size_t i = 0; i < n; ++i) values[i] = period[i % period.size()];
  return values;
}

std::vector<std::byte> random_packed(std::size_t n, int bits) {
  std::mt19937 random(2);
  std::vector<std::byte> packed(packed_bytes(n, bits));
  for (std::byte& byte : packed) byte = static_cast<std::byte>(random());
  return packed;
}

std::vector<float> even_thresholds(int bits) {
  std::vector<float> thresholds((std::size_t{1} << bits) - 1);
  for (std::size_t t = 0; t < thresholds.size(); ++t) {
    thresholds[t] = 4.0F * static_cast<float>(t + 1) / static_cast<float>(1 << bits) - 2.0F;
  }
  return thresholds;
}

// Times `work` on n elements, and reports it as n floats a call.
template <class Work>
void time_per_float(benchmark::State& state, std::size_t n, const Work& work) {
  for (auto _ : state) work();
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(n * sizeof(float)) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

template <class Work>
void for_each_piece(std::size_t n, const Work& work) {
  for (std::size_t begin = 0; begin < n; begin += kPiece) work(begin, std::min(kPiece, n - begin));
}

// The fastest way found to only read: line by line, with prefetches that cross pages as the kernels' do.
void read_memory(benchmark::State& state) {
  constexpr std::size_t kLine = 8, kAhead = 256;  // words
  const std::vector<std::uint64_t> words(kElements / 2 + kAhead, 1);
  time_per_float(state, kElements, [&] {
    std::uint64_t sums[kLine] = {};
    for (std::size_t begin = 0; begin + kAhead < words.size(); begin += kLine) {
      __builtin_prefetch(&words[begin + kAhead]);
      for (std::size_t i = 0; i < kLine; ++i) sums[i] += words[begin + i];
    }
    benchmark::DoNotOptimize(sums);
  });
}
BENCHMARK(read_memory);

// Benchmarks named after what they time; the argument is the number of elements, and bits where there are any.
void time_measure(benchmark::State& state) {
  const std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  time_per_float(state, values.size(), [&] { benchmark::DoNotOptimize(measure(values)); });
}
void time_scan(benchmark::State& state) {
  const std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  time_per_float(state, values.size(), [&] { benchmark::DoNotOptimize(scan(values)); });
}
void time_multiply(benchmark::State& state) {
  std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  time_per_float(state, values.size(), [&] { multiply(values, -1.0F); });
}
void time_squared_norm(benchmark::State& state) {
  const std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  time_per_float(state, values.size(), [&] { benchmark::DoNotOptimize(squared_norm(values)); });
}
void time_checksum(benchmark::State& state) {
  const std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  time_per_float(state, values.size(), [&] { benchmark::DoNotOptimize(checksum(std::as_bytes(std::span(values)))); });
}
void time_histogram(benchmark::State& state) {
  const std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  std::vector<std::int32_t> counts(2 * SignedHistogram::kBins);
  time_per_float(state, values.size(), [&] { add_to_histogram(values, 1.0F, counts); });
}

template <auto kKernel>
void time_to_half(benchmark::State& state) {
  const std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  std::vector<std::uint16_t> half(values.size());
  time_per_float(state, values.size(), [&] { kKernel(values, 0.5F, half); });
}
template <auto kKernel>
void time_from_half(benchmark::State& state) {
  std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  std::vector<std::uint16_t> half(values.size());
  to_fp16(values, 1.0F, half);
  time_per_float(state, values.size(), [&] { kKernel(half, 0.5F, values); });
}
template <auto kKernel>
void time_add_half(benchmark::State& state) {
  std::vector<std::uint16_t> half(static_cast<std::size_t>(state.range(0))), total(half.size());
  to_fp16(random_floats(half.size()), 1.0F, half);
  time_per_float(state, half.size(), [&] { kKernel(half, total); });
}

void time_pack(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const int bits = static_cast<int>(state.range(1));
  std::vector<std::uint8_t> codes(n);
  std::vector<std::byte> packed = random_packed(n, bits);
  unpack(packed, bits, codes);
  time_per_float(state, n, [&] { pack(codes, bits, packed); });
}
void time_unpack(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const int bits = static_cast<int>(state.range(1));
  std::vector<std::uint8_t> codes(n);
  const std::vector<std::byte> packed = random_packed(n, bits);
  time_per_float(state, n, [&] { unpack(packed, bits, codes); });
}
void time_assign(benchmark::State& state) {
  const std::vector<float> values = random_floats(static_cast<std::size_t>(state.range(0)));
  const int bits = static_cast<int>(state.range(1));
  const std::vector<float> thresholds = even_thresholds(bits);
  std::vector<std::byte> packed(packed_bytes(values.size(), bits));
  time_per_float(state, values.size(),
                 [&] { benchmark::DoNotOptimize(assign(values, thresholds, bits, packed)); });
}
using LookUp = void (*)(std::span<const std::byte> packed, int bits, std::span<const float> table, std::span<float> out);
template <LookUp kKernel>
void time_look_up(benchmark::State& state) {
  const int bits = static_cast<int>(state.range(1));
  std::vector<float> out(static_cast<std::size_t>(state.range(0)));
  const std::vector<std::byte> packed = random_packed(out.size(), bits);
  const std::vector<float> table = random_floats(std::size_t{1} << bits);
  time_per_float(state, out.size(), [&] { kKernel(packed, bits, table, out); });
}

// Several workers' codes, each with a table of its own.
class Workers {
 public:
  Workers(std::size_t workers, std::size_t elements, int bits) : packed_(workers, random_packed(elements, bits)) {
    for (std::size_t w = 0; w < workers; ++w) tables_.push_back(random_floats(std::size_t{1} << bits));
    for (std::size_t w = 0; w < workers; ++w) codes_.push_back({packed_[w], tables_[w]});
  }
  std::span<const Coded> codes() const { return codes_; }

 private:
  std::vector<std::vector<std::byte>> packed_;
  std::vector<std::vector<float>> tables_;
  std::vector<Coded> codes_;
};

void look_up_one_after_another(std::span<const Coded> codes, int bits, std::span<float> out) {
  look_up(codes[0].packed, bits, codes[0].table, out);
  for (const Coded& coded : codes.subspan(1)) look_up_add(coded.packed, bits, coded.table, out);
}
using LookUpSum = void (*)(std::span<const Coded> codes, int bits, std::span<float> out);
template <LookUpSum kSum>
void time_look_up_sum(benchmark::State& state) {
  std::vector<float> out(static_cast<std::size_t>(state.range(0)));
  const int bits = static_cast<int>(state.range(1));
  const Workers workers(static_cast<std::size_t>(state.range(2)), out.size(), bits);
  time_per_float(state, out.size(), [&] { kSum(workers.codes(), bits, out); });
}

// An encoder's two passes: measure a piece of a gradient in memory, and code it while it is in cache.
void measure_and_assign(benchmark::State& state) {
  const std::vector<float> values = random_floats(kElements);
  const std::vector<float> thresholds = even_thresholds(2);
  std::vector<std::byte> packed(packed_bytes(kPiece, 2));
  time_per_float(state, kElements, [&] {
    for_each_piece(kElements, [&](std::size_t begin, std::size_t size) {
      const std::span piece = std::span(values).subspan(begin, size);
      benchmark::DoNotOptimize(measure(piece));
      benchmark::DoNotOptimize(assign(piece, thresholds, 2, std::span(packed).first(packed_bytes(size, 2))));
    });
  });
}
BENCHMARK(measure_and_assign);

// Codes of a gradient far larger than the caches, in pieces, and what a worker does with them.
class Exchanged {
 public:
  explicit Exchanged(std::size_t workers)
      : workers_(workers, kElements, kBits), gradient(random_floats(kElements)), residual(random_floats(kElements)) {}
  std::span<const Coded> codes_of(std::size_t begin, std::size_t size) {
    codes_.clear();
    for (const Coded& all : workers_.codes())
      codes_.push_back({all.packed.subspan(packed_bytes(begin, kBits), packed_bytes(size, kBits)), all.table});
    return codes_;
  }
  static constexpr int kBits = 2;
  static constexpr float kNegated[] = {2, 0.5, -0.5, -2};

 private:
  Workers workers_;
  std::vector<Coded> codes_;

 public:
  std::vector<float> gradient, residual;
  std::vector<float> values = std::vector<float>(kPiece), mean = values;
};

void commit_codes(Exchanged& all, std::size_t begin, std::size_t size) {
  const std::span codes = all.codes_of(begin, size);
  const std::span gradient = std::span(all.gradient).subspan(begin, size), residual = std::span(all.residual).subspan(begin, size);
  const std::span values = std::span(all.values).first(size), mean = std::span(all.mean).first(size);
  open(gradient, 0.5F, residual, values);
  look_up_add(codes[0].packed, Exchanged::kBits, Exchanged::kNegated, values);
  look_up_sum(codes, Exchanged::kBits, mean);
  commit(mean, 0.25F, values, gradient, residual);
}
template <auto kCommit>
void time_commit(benchmark::State& state) {
  Exchanged all(static_cast<std::size_t>(state.range(0)));
  time_per_float(state, kElements, [&] { for_each_piece(kElements, [&](std::size_t begin, std::size_t size) { kCommit(all, begin, size); }); });
}
BENCHMARK(time_commit<commit_codes>)->Name("commit")->RangeMultiplier(2)->Range(1, 8);

// Error feedback at 2 bits: a worker's own encoding, which changes neither gradient nor residual, and four workers' codes.
void encode_beside(Exchanged& all, std::size_t begin, std::size_t size, std::span<const float> thresholds, std::span<std::byte> packed) {
  const std::span values = std::span(all.values).first(size);
  benchmark::DoNotOptimize(open(std::span(all.gradient).subspan(begin, size), 0.5F, std::span(all.residual).subspan(begin, size), values));
  benchmark::DoNotOptimize(assign(values, thresholds, Exchanged::kBits, packed));
}
void feedback(benchmark::State& state) {
  Exchanged all(4);
  const std::vector<float> thresholds = even_thresholds(Exchanged::kBits);
  std::vector<std::byte> packed(packed_bytes(kElements, Exchanged::kBits));
  time_per_float(state, kElements, [&] {
    for_each_piece(kElements, [&](std::size_t begin, std::size_t size) {
      const std::span own = std::span(packed).subspan(packed_bytes(begin, Exchanged::kBits), packed_bytes(size, Exchanged::kBits));
      encode_beside(all, begin, size, thresholds, own);
    });
    for_each_piece(kElements, [&](std::size_t begin, std::size_t size) { commit_codes(all, begin, size); });
  });
}
BENCHMARK(feedback);

// An embedding of 50,000 rows of 256, of which 5 % are used: to find them, and to pack them.
constexpr std::size_t kRows = 50'000, kRow = 256, kEvery = 20;
std::vector<float> embedding_gradient() {
  std::vector<float> values = random_floats(kRows * kRow);
  for (std::size_t r = 0; r < kRows; ++r)
    if (r * 7919 % kEvery != 0) std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(r * kRow), kRow, 0.0F);
  return values;
}
void find_rows(benchmark::State& state) {
  std::vector<float> values = embedding_gradient();
  std::vector<std::uint32_t> marks((kRows + 31) / 32);
  time_per_float(state, values.size(), [&] { mark_rows(values, kRow, marks); });
}
BENCHMARK(find_rows);
void pack_rows(benchmark::State& state) {
  const std::vector<float> values = embedding_gradient();
  std::vector<float> packed(kRows / kEvery * kRow);
  time_per_float(state, packed.size(), [&] {
    std::size_t next = 0;
    for (std::size_t r = 0; r < kRows; ++r) {
      if (r * 7919 % kEvery != 0) continue;
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(r * kRow), kRow, packed.begin() + static_cast<std::ptrdiff_t>(next));
      next += kRow;
    }
    benchmark::DoNotOptimize(packed.data());
  });
}
BENCHMARK(pack_rows);

// The rows of a union of 7,500, sketched into a quarter of their entries, and estimated again.
void sketch_and_estimate(benchmark::State& state) {
  const std::vector<float> values = random_floats(7500 * kRow);
  const auto tables = static_cast<std::size_t>(state.range(0));
  const auto cells = static_cast<std::uint32_t>(sketch_groups(values.size()) / 4 / tables);
  const std::vector<std::uint64_t> seeds = {1, 2, 3};
  std::vector<float> sketch(tables * cells * kSketchGroup), estimates(values.size());
  time_per_float(state, values.size(), [&] {
    std::fill(sketch.begin(), sketch.end(), 0.0F);
    for (std::size_t t = 0; t < tables; ++t)
      add_to_sketch(values, seeds[t], cells, 0, cells, std::span(sketch).subspan(t * cells * kSketchGroup, cells * kSketchGroup));
    estimate_from_sketch(sketch, std::span(seeds).first(tables), cells, sketch_groups(values.size()), 0, {0.2F, 0.25F}, estimates);
    benchmark::DoNotOptimize(estimates.data());
  });
}
BENCHMARK(sketch_and_estimate)->Arg(1)->Arg(3);

// A gradient in memory, piece by piece into the cache.
void time_open(benchmark::State& state) {
  const std::vector<float> gradient = random_floats(kElements);
  std::vector<float> values(kPiece);
  time_per_float(state, kElements, [&] {
    for (std::size_t first = 0; first < kElements; first += kPiece) {
      const std::size_t count = std::min(kPiece, kElements - first);
      benchmark::DoNotOptimize(open(std::span(gradient).subspan(first, count), 1.0F, {}, std::span(values).first(count)));
    }
  });
}
BENCHMARK(time_open);

void in_memory_and_in_cache(benchmark::internal::Benchmark* bench) {
  for (const std::size_t n : {kElements, kPiece}) bench->Arg(static_cast<std::int64_t>(n));
}
template <int kMostBits>
void with_bits(benchmark::internal::Benchmark* bench) {
  for (const std::size_t n : {kElements, kPiece}) {
    for (int bits = 1; bits <= kMostBits; ++bits) bench->Args({static_cast<std::int64_t>(n), bits});
  }
}
BENCHMARK(time_measure)->Apply(in_memory_and_in_cache);
BENCHMARK(time_scan)->Apply(in_memory_and_in_cache);
BENCHMARK(time_multiply)->Apply(in_memory_and_in_cache);
BENCHMARK(time_squared_norm)->Apply(in_memory_and_in_cache);
BENCHMARK(time_checksum)->Apply(in_memory_and_in_cache);
void time_select_largest(benchmark::State& state) {
  const std::vector<float> values = random_floats(kPiece);
  std::vector<std::uint16_t> places(kPiece * static_cast<std::size_t>(state.range(0)) / 1000);
  std::vector<std::uint16_t> room(selecting_room(kPiece));
  time_per_float(state, kPiece, [&] { select_largest(values, places, room); });
}
// What the standard library has for it.
void time_nth_element(benchmark::State& state) {
  const std::vector<float> values = random_floats(kPiece);
  std::vector<std::uint16_t> first(kPiece), places;
  std::iota(first.begin(), first.end(), std::uint16_t{0});
  const auto count = static_cast<std::ptrdiff_t>(kPiece) * state.range(0) / 1000;
  time_per_float(state, kPiece, [&] {
    places = first;
    std::nth_element(places.begin(), places.begin() + count, places.end(),
                     [&](std::uint16_t a, std::uint16_t b) { return std::abs(values[a]) > std::abs(values[b]); });
    std::sort(places.begin(), places.begin() + count);
  });
}
BENCHMARK(time_select_largest)->ArgName("per_mille")->Arg(1)->Arg(10)->Arg(100)->Arg(500);
BENCHMARK(time_nth_element)->ArgName("per_mille")->Arg(10);

// A chunk in the cache.
void time_hadamard(benchmark::State& state) {
  std::vector<float> values(kPiece, 0.0F);
  time_per_float(state, kPiece, [&] {
    hadamard(values);
    benchmark::DoNotOptimize(values.data());
  });
}
BENCHMARK(time_hadamard);

// Rounding at random: its numbers, and codes of 4 bits that they decide on.
void time_random_words(benchmark::State& state) {
  std::vector<std::uint32_t> words(kPiece);
  time_per_float(state, kPiece, [&] {
    random_words({1, 2, 3, 4}, {5, 6}, words);
    benchmark::DoNotOptimize(words.data());
  });
}
void time_rounding_words(benchmark::State& state) {
  std::vector<std::uint32_t> words(kPiece);
  time_per_float(state, kPiece, [&] {
    rounding_words({1, 2, 3, 4}, {5, 6}, 0, words);
    benchmark::DoNotOptimize(words.data());
  });
}
// Among levels of any of its kinds.
template <class Levels>
void time_assign_randomly(benchmark::State& state, const Levels& levels, int bits) {
  const std::vector<float> values = random_floats(kPiece);
  std::vector<std::uint32_t> words(kPiece);
  random_words({1, 2, 3, 4}, {5, 6}, words);
  std::vector<std::byte> packed(packed_bytes(kPiece, bits));
  time_per_float(state, kPiece, [&] {
    assign_randomly(values, levels, bits, words, packed);
    benchmark::DoNotOptimize(packed.data());
  });
}
void time_assign_floats(benchmark::State& state, const FewBitFloats& floats, int bits) {
  const std::vector<float> values = random_floats(kPiece);
  std::vector<std::byte> packed(packed_bytes(kPiece, bits));
  time_per_float(state, kPiece, [&] {
    assign(values, floats, bits, packed);
    benchmark::DoNotOptimize(packed.data());
  });
}
BENCHMARK(time_random_words);
BENCHMARK(time_rounding_words);
BENCHMARK_CAPTURE(time_assign_randomly, even_2_bits, EvenLevels{2, 0.5F}, 2);
BENCHMARK_CAPTURE(time_assign_randomly, even_4_bits, EvenLevels{14, 2.0F}, 4);
BENCHMARK_CAPTURE(time_assign_randomly, even_8_bits, EvenLevels{254, 32.0F}, 8);
BENCHMARK_CAPTURE(time_assign_randomly, floats_4_bits, FewBitFloats{0, -4, 7}, 4);
BENCHMARK_CAPTURE(time_assign_randomly, floats_8_bits, FewBitFloats{0, -126, 127}, 8);
BENCHMARK_CAPTURE(time_assign_floats, floats_4_bits, FewBitFloats{1, 0, 7}, 4);
BENCHMARK_CAPTURE(time_assign_floats, floats_8_bits, FewBitFloats{3, -6, 126}, 8);

BENCHMARK(time_histogram)->Apply(in_memory_and_in_cache);
BENCHMARK(time_to_half<to_bf16>)->Name("to_bf16")->Apply(in_memory_and_in_cache);
BENCHMARK(time_to_half<to_fp16>)->Name("to_fp16")->Apply(in_memory_and_in_cache);
BENCHMARK(time_from_half<from_bf16>)->Name("from_bf16")->Apply(in_memory_and_in_cache);
BENCHMARK(time_from_half<from_fp16>)->Name("from_fp16")->Apply(in_memory_and_in_cache);
BENCHMARK(time_from_half<subtract_bf16>)->Name("subtract_bf16")->Apply(in_memory_and_in_cache);
BENCHMARK(time_from_half<subtract_fp16>)->Name("subtract_fp16")->Apply(in_memory_and_in_cache);
BENCHMARK(time_add_half<add_bf16>)->Name("add_bf16")->Apply(in_memory_and_in_cache);
BENCHMARK(time_add_half<add_fp16>)->Name("add_fp16")->Apply(in_memory_and_in_cache);
BENCHMARK(time_pack)->Apply(with_bits<kMaxCodeBits>);
BENCHMARK(time_unpack)->Apply(with_bits<kMaxCodeBits>);
BENCHMARK(time_assign)->Apply(with_bits<kMaxCodeBits>);
BENCHMARK(time_look_up<look_up>)->Name("look_up")->Apply(with_bits<kMaxCodeBits>);
BENCHMARK(time_look_up<look_up_add>)->Name("look_up_add")->Apply(with_bits<kMaxCodeBits>);
void pieces_of_workers(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({{kPiece}, {1, 2, 3, 4, 8}, {1, 2, 4, 8}});
}
BENCHMARK(time_look_up_sum<look_up_one_after_another>)->Name("look_up_one_after_another")->Apply(pieces_of_workers);
BENCHMARK(time_look_up_sum<look_up_sum>)->Name("look_up_sum")->Apply(pieces_of_workers);

}  // namespace
}  // namespace thinwire::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (const char* target = std::getenv("THINWIRE_TARGET")) thinwire::kernels::force_target(target);
  benchmark::AddCustomContext("SIMD target", thinwire::kernels::current_target());
  benchmark::RunSpecifiedBenchmarks();
  return benchmark::ReportUnrecognizedArguments(argc, argv) ? 1 : 0;
}
