// What measurements need: gradients to measure with, and medians.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "thinwire/layout.h"

namespace thinwire::tool {

// What DDP hands over at a time by default: 25 MiB of float32.
inline constexpr std::uint64_t kBucketElements = 6'553'600;

// Parameters of one bucket each, two-dimensional where that comes out even.
Layout bucket_layout(std::uint64_t elements, std::uint64_t bucket_elements);

// What is reduced at a time: consecutive parameters of a layout.
struct Buckets {
  Layout layout;
  std::vector<std::uint32_t> ends = {};  // of each bucket, the parameter behind its last
};

// Every bucket ends with the parameter that fills it: the first with `first_elements`, if that is given.
Buckets fill_buckets(Layout layout, std::uint64_t bucket_elements, std::optional<std::uint64_t> first_elements = {});

// A gradient as training makes them: Gaussian, at scales that differ from block to block. The same in every run;
// another one for every worker.
std::vector<float> gradient_like(std::uint64_t elements, int worker = 0);

double median(std::vector<double> values);

}  // namespace thinwire::tool
