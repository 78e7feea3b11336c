// How the workers of a host divide a layout among themselves: a part of it for each to compress.
#pragma once

#include <cstdint>
#include <vector>

#include "reducer/policy.h"
#include "thinwire/layout.h"
#include "thinwire/reducer.h"

namespace thinwire {

// By part, then by parameter. Parameters are cut where their compressors allow it (chunks of the grid, rows, or nowhere), as evenly as
// that goes; what does not divide evenly goes to the part that has least so far. The same on every host.
using HostParts = std::vector<std::vector<ParameterRange>>;
HostParts divide_layout(const Layout& layout, const Policy& policy, int parts);

// The layout of one part: all parameters by their names, each as long as its range. What is cut between rows stays a matrix.
Layout layout_of_part(const Layout& layout, const std::vector<ParameterRange>& part);

}  // namespace thinwire
