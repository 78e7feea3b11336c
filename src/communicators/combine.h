// Sums, maxima and unions over the buffers of several workers in one address space.
#pragma once

#include <cstddef>
#include <span>

#include "thinwire/collective.h"

namespace thinwire {

// Whether a collective of this kind combines elements of this type.
bool can_combine(CollectiveKind kind, ElementType type);

// Replaces elements [first, last) of every worker's data by their combination, taken in rank order. `posted` are all
// workers' collectives in rank order: one kind and type that can_combine() allows, and data of one size. Calls for
// ranges that do not overlap may run at the same time.
void combine(std::span<const Collective> posted, std::size_t first, std::size_t last) noexcept;

// Combines `other` into `total`, which are as long as each other and hold whole elements; both are aligned to them.
// Sixteen-bit floats are rounded each time.
void combine_into(CollectiveKind kind, ElementType type, std::span<std::byte> total, std::span<const std::byte> other) noexcept;

}  // namespace thinwire
