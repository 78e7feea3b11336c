// What `thinwire plan` reckons with: a network in words, buckets as DDP makes them, and from where on compressing pays.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thinwire/layout.h"
#include "thinwire/step_time.h"
#include "tool/samples.h"

namespace thinwire::tool {

// Bytes a second of a rate in bits, such as "100mbit" or "2.5gbit"; seconds of a time such as "200us" or "0.4ns". Throw ArgumentError.
double parse_rate(const std::string& text);
double parse_time(const std::string& text);

inline constexpr int kMostPlanned = 1024, kMostOfAHost = 8;

// "4x8": four hosts of eight workers each. Throws ArgumentError.
struct Hosts {
  int count = 1;
  int workers = 1;  // of each
};
Hosts parse_hosts(const std::string& text);

// "2.5 Gb/s", of bytes a second.
std::string short_rate(double bytes_per_second);

// In elements. DDP's first bucket has 1 MiB, so that sending begins early, unless its user has chosen a size.
struct BucketSizes {
  std::uint64_t first = 262'144;
  std::uint64_t others = kBucketElements;
};
// Of so many MiB, if that is given.
BucketSizes bucket_sizes(std::optional<double> mb);

// What DDP reduces at a time: whole parameters, from the last to the first. Each bucket ends with the parameter that fills it.
Buckets ddp_buckets(const Layout& layout, const BucketSizes& sizes);

// Of which ddp_buckets() makes buckets of one parameter each: matrices, as square as halving allows.
Layout even_layout(std::uint64_t elements, const BucketSizes& sizes);

std::vector<std::uint64_t> bucket_elements(const Buckets& buckets);

// Buckets become ready in the backward pass, behind that share of the computation, in proportion to their elements.
std::vector<double> ready_seconds(std::span<const std::uint64_t> elements, double compute_seconds, double forward_share);

// Some of the buckets, whose costs are measured, and what stands for the others.
struct Sample {
  Buckets buckets;
  std::vector<std::size_t> numbers;  // those of the first of `buckets`; any other stands for those that are left out

  std::uint64_t elements() const { return buckets.layout.elements(); }
};

inline constexpr std::uint64_t kMostSampled = 8'388'608;  // elements

// The first buckets that fit; where that is little, and something is left out, a matrix as well.
Sample sample_of(const Buckets& buckets);

// Of all buckets. What was not measured costs as much for each element as what was, in as many rounds as the largest.
std::vector<BucketCost> spread(const Sample& sample, std::span<const BucketCost> measured, std::span<const std::uint64_t> elements);

// What a bucket costs with more workers than can be tried, from two numbers that were. Traffic is that of messages to all others, the same
// one or a part for each: (W - 1)(a + b p(W)), where the largest part is a W-th around a ring, and whole chunks, of which the bucket has `chunks`, where owners average.
// Seconds grow evenly where all others' messages are decoded, if not hardly at all; of parts all workers together decode as much as ever.
struct TriedWorkers {
  int workers;
  BucketCost cost;
  std::uint64_t chunks;
};
BucketCost extrapolate(const TriedWorkers& fewer, const TriedWorkers& more, int workers, std::uint64_t chunks);

// On which `tried` workers choose as `workers` do on `link`: sending parts instead of the same to all saves (W - 1)(W - 2) / W messages.
Link choosing_alike(const Link& link, int tried, int workers);

// What the model is told of a step by one spec.
struct ModelledStep {
  StepCost cost;
  std::vector<BucketCost> buckets;

  StepTime time() const { return predict_step(cost, buckets); }
  // The same on a link of so many bytes a second.
  double seconds_at(double bytes_per_second) const;
};

// Bytes a second below which `step` takes less time than `plain`: 0 on no link, infinity on any.
double pays_below(const ModelledStep& step, const ModelledStep& plain);

// Without which of them the step would be shortest; computation if there is hardly anything else.
enum class Limit : std::uint8_t { kComputation, kCodec, kSending, kLink, kRounds };
Limit limit_of(const ModelledStep& step);
const char* name_of(Limit limit);

}  // namespace thinwire::tool
