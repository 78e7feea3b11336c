#include "reducer/policy.h"

#include <fnmatch.h>

#include <set>
#include <string>

#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint64_t kSmallElements = 1024;

const std::string& spec_for(const Parameter& parameter, const ReducerOptions& options) {
  static const std::string uncompressed = "none";
  for (const Rule& rule : options.rules)
    if (fnmatch(rule.pattern.c_str(), parameter.name.c_str(), 0) == 0) return rule.spec;
  return options.small_uncompressed && is_small(parameter) ? uncompressed : options.compressor;
}

std::uint64_t chunk_for(const Compressor& compressor, int world_size, std::uint64_t elements) {
  constexpr int kFewWorkers = 8;
  constexpr std::uint64_t kForEach = 12, kBucket = 6'553'600;
  std::uint64_t chunk = kChunkElements;
  if (world_size <= kFewWorkers) return chunk;
  const std::uint64_t longest = std::min(elements, kBucket) / (kForEach * static_cast<std::uint64_t>(world_size));
  while (chunk > std::max(longest, compressor.fewest_chunk_elements())) chunk /= 2;
  return chunk;
}

// The second of two rules with one pattern would never decide anything.
void check_patterns(const std::vector<Rule>& rules) {
  std::set<std::string> patterns;
  for (const Rule& rule : rules)
    if (!patterns.insert(rule.pattern).second)
      throw ArgumentError("the pattern '" + rule.pattern + "' occurs in two rules; keep one of them");
}

}  // namespace

bool is_small(const Parameter& parameter) {
  return parameter.shape.size() < 2 || parameter.elements() < kSmallElements;
}

std::uint64_t chunk_elements(const std::string& compressor, int world_size, std::uint64_t elements) {
  return chunk_for(*make_compressor(compressor).compressor, world_size, elements);
}

Policy::Policy(const Layout& layout, const ReducerOptions& options) : from_owners_(options.from_owners), world_size_(options.world_size), elements_(layout.elements()) {
  check_patterns(options.rules);
  make(options.compressor);
  for (const Rule& rule : options.rules) make(rule.spec);
  for (const Parameter& parameter : layout.parameters()) chosen_.push_back(make(spec_for(parameter, options)));
}

const ChosenCompressor* Policy::make(const std::string& spec) {
  ChosenCompressor chosen = make_compressor(spec);
  chosen.feedback = chosen.feedback && !from_owners_;
  chosen.chunk = chunk_for(*chosen.compressor, world_size_, elements_);
  const std::string key = chosen.canonical;
  return &made_.try_emplace(key, std::move(chosen)).first->second;
}

}  // namespace thinwire
