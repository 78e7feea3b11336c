#include "compressors/gradiveq/blas_agreement.h"

#include "core/fingerprint.h"
#include "kernels/linear_algebra.h"
#include "thinwire/errors.h"

namespace thinwire {

void write_blas_fingerprint(std::span<std::int32_t> numbers) {
  Fingerprint version;
  version.add(kernels::blas_version());
  numbers[0] = static_cast<std::int32_t>(version.value() >> 34);
  numbers[1] = -numbers[0];
}

void check_blas_fingerprint(std::span<const std::int32_t> maxima) {
  if (maxima[0] != -maxima[1])
    throw PeerError("workers' processors or their OpenBLAS differ, so that these would round differently (here it is " +
                    kernels::blas_version() + "); install the same one, and set OPENBLAS_CORETYPE alike on all of them");
}

}  // namespace thinwire
