// Which parameter travels by which compressor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compressors/registry.h"
#include "thinwire/layout.h"
#include "thinwire/reducer.h"

namespace thinwire {

class Policy {
 public:
  // Throws ArgumentError for a spec that is not allowed, also if no parameter uses it.
  Policy(const Layout& layout, const ReducerOptions& options);

  const ChosenCompressor& compressor_of(std::size_t parameter) const { return *chosen_[parameter]; }
  // By canonical spec; of the parameters' compressors and those that none uses.
  const std::map<std::string, ChosenCompressor>& made() const { return made_; }

 private:
  const ChosenCompressor* make(const std::string& spec);

  bool from_owners_;  // where nothing keeps a residual
  int world_size_;
  std::uint64_t elements_;  // of the layout
  std::map<std::string, ChosenCompressor> made_;
  std::vector<const ChosenCompressor*> chosen_;  // by parameter
};

}  // namespace thinwire
