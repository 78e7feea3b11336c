// Whether all workers have the same OpenBLAS, with the same kernels: if not, they would decode different bits.
#pragma once

#include <cstdint>
#include <span>

namespace thinwire {

// Two numbers, of which the maxima over all workers tell.
void write_blas_fingerprint(std::span<std::int32_t> numbers);
// Throws PeerError if they differ.
void check_blas_fingerprint(std::span<const std::int32_t> maxima);

}  // namespace thinwire
