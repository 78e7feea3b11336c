// All rows, by name. To add one: its header and source with NAME_row(), a line of the list in registry.cc, a line in CMakeLists.txt.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "compressors/shared/row.h"
#include "core/work.h"
#include "thinwire/registry.h"

namespace thinwire {

// In the order of compressors().
std::span<const Row> rows();
// Throws ArgumentError for a name that no row has.
const Row& row_of(const std::string& name);

// A spec string, understood.
struct ChosenCompressor {
  const CompressorInfo* info = nullptr;  // of the first stage
  std::string canonical;  // the spec with every value written out
  bool feedback = false;  // whether a residual is kept: if any stage wants one
  bool depends_on_scale = false;  // if any stage does
  Claims claims;          // of all stages together
  std::unique_ptr<const Compressor> compressor;
  std::uint64_t chunk = kChunkElements;  // elements of a chunk, where units are elements
};

// Throws ArgumentError.
ChosenCompressor make_compressor(std::string_view spec);

}  // namespace thinwire
