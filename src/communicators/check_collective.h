// What every communicator asks of a collective before it moves a byte.
#pragma once

#include <string>

#include "core/host_groups.h"
#include "thinwire/collective.h"

namespace thinwire {

// Throws ArgumentError, naming what is wrong, if `collective` makes no sense for `world_size` workers: data that is not
// whole elements or not aligned, a result of the wrong size or one that overlaps the data, a root that is no rank, a type
// that the kind does not combine.
void check_collective(const Collective& collective, int world_size);

// Throws ArgumentError for a collective of workers of a host, or between hosts, where none are told apart.
void check_group(const Collective& collective, const HostGroups& groups);

// For people: "sum of 4097 float32", "gather of 12 bytes", "broadcast of 4 bytes from worker 2".
std::string describe(const Collective& collective);
std::string describe(CollectiveKind kind, ElementType type, std::size_t bytes, int root);

}  // namespace thinwire
