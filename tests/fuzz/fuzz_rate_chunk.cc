// The code of a chunk of casq:rate=: refused with PayloadError, or as many finite values as it should have, that are the same on
// every target and whether they are stored or added. Encoders' own codes are the other half of the inputs, with bits flipped, or not.
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "compressors/casq/rate_chunk.h"
#include "fuzz/fuzz_input.h"
#include "kernels/targets.h"
#include "thinwire/errors.h"

namespace thinwire::fuzz {
namespace {

struct Coders {
  casq::ChunkEncoder encoder;
  casq::ChunkDecoder decoder;
};
Coders& coders() {
  static const auto made = std::make_unique<Coders>();
  return *made;
}

// Memory of exactly this size, so that the address sanitizer sees what is beyond.
using Bytes = std::vector<std::byte>;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> any_values(Input& input, std::size_t n) {
  std::vector<float> values(n);
  const std::uint32_t kind = input.number<std::uint8_t>() % 4;
  std::uint32_t state = input.number<std::uint32_t>();
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = kind == 0 ? std::bit_cast<float>(state) : std::ldexp(static_cast<float>(state >> 8), -static_cast<int>(state % (kind * 13)) - 24);
    if (!std::isfinite(value)) value = 0;
  }
  return values;
}

Bytes own_code(Input& input, std::size_t n, float step) {
  const std::vector<float> values = any_values(input, n);
  Bytes code(casq::most_code_bytes(n));
  std::vector<float> residual(n), decoded(n);
  const casq::EncodedChunk encoded = coders().encoder.encode(values, step, code, residual);
  require(encoded.finite && encoded.bytes <= code.size(), "finite values have a code that is not too long");
  code.resize(encoded.bytes);
  coders().decoder.unpack(code, n).store(step, 1, decoded);
  for (std::size_t i = 0; i < n; ++i) require(residual[i] == values[i] - decoded[i], "the residual is what decoding leaves");
  return code;
}

void decode(const Bytes& code, std::size_t n, float step) {
  std::vector<float> stored(n), added(n, -0.0F), plain(n);
  Bytes memory(casq::most_copy_bytes(n, code.size()));
  const casq::UnpackedChunk unpacked = coders().decoder.unpack(code, n), copy = unpacked.copy_to(memory);
  unpacked.store(step, 0.5F, stored);
  for (const float value : stored) require(std::isfinite(value) && std::fabs(value) <= unpacked.bound(step), "decoded values are within their bound");
  std::fill(added.begin(), added.end(), 0.0F);
  copy.add(step, 0.5F, added);
  for (std::size_t i = 0; i < n; ++i) require(added[i] == stored[i], "what is added to 0 is what is stored");
  kernels::force_target(kernels::available_targets().back());
  coders().decoder.unpack(code, n).store(step, 0.5F, plain);
  kernels::force_target("");
  require(same_bits(plain, stored), "all targets decode alike");
}

}  // namespace
}  // namespace thinwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const std::size_t n = input.choose(4) == 0 ? input.choose(casq::kMostChunkElements + 1) : input.choose(1000);
  const float step = std::ldexp(1.0F, static_cast<int>(input.number<std::uint8_t>()) - 125);
  fuzz::Bytes code;
  if (step <= kernels::kLargestStep && input.choose(2) == 0) {
    code = fuzz::own_code(input, n, step);
    input.spoil(code);
  } else {
    const std::string bytes = input.text();
    code.resize(bytes.size());
    if (!bytes.empty()) std::memcpy(code.data(), bytes.data(), bytes.size());
  }
  try {
    fuzz::decode(code, n, std::min(step, kernels::kLargestStep));
  } catch (const PayloadError&) {
  }
  return 0;
}
