#include "compressors/casq/casq_rate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include "compressors/casq/rate_chunk.h"
#include "compressors/casq/rate_step.h"
#include "core/bytes.h"
#include "thinwire/errors.h"

namespace thinwire {

using casq::ChunkDecoder, casq::ChunkEncoder, casq::ChunkRecord, casq::CasqRateMemory, casq::UnpackedChunk, casq::StepCode, casq::memory_of;

Exchange CasqRate::exchange(Work& work, Context& context) const { return reduce_coded(*this, options_.reduce, work, context); }

std::unique_ptr<CompressorMemory> CasqRate::make_memory(const Parameter& parameter, std::uint64_t chunk) const {
  return std::make_unique<CasqRateMemory>(parameter.elements(), chunk);
}

void CasqRate::plan_step(std::span<CompressorMemory*> memories) const { casq::plan_rates(memories, rates(), options_.weight); }

std::size_t CasqRate::most_bytes(const Piece& piece) const { return sizeof(StepCode) + casq::most_code_bytes(piece.elements()); }

std::size_t CasqRate::usual_bytes(const Piece& piece, Pass pass) const {
  const auto elements = static_cast<double>(piece.elements());
  const casq::RatePlan& plan = memory_of(piece).plan(pass);
  const std::uint32_t longest = memory_of(piece).record(piece, pass).longest;
  const double bytes = plan.usual > 0 && longest > 0 ? plan.usual * longest * elements / double{kChunkElements} : rate(pass) * elements / 8;
  return std::min(most_bytes(piece), static_cast<std::size_t>(bytes));
}

void CasqRate::foresee(std::span<const Piece* const> pieces, Pass pass, double bytes_an_element) const {
  const double bytes = std::ceil(bytes_an_element * double{kChunkElements}) + 1;
  const auto longest = static_cast<std::uint32_t>(std::min(bytes, double{casq::kMostLongest}));
  for (const Piece* piece : pieces) {
    ChunkRecord& record = memory_of(*piece).record(*piece, pass);
    const casq::RatePlan& plan = memory_of(*piece).plan(pass);
    record.longest = longest;
    record.owed = plan.owed;
    record.aimed = plan.aimed > 0 ? plan.aimed : static_cast<float>(rate(pass));
  }
}

std::size_t CasqRate::room_bytes(const Piece&, std::size_t) const { return std::max(sizeof(ChunkEncoder), sizeof(ChunkDecoder)); }

namespace {

struct UnpackedCode {
  UnpackedChunk chunk;
  float step;
};
static_assert(std::is_trivially_destructible_v<UnpackedCode>, "scratch calls no destructors");

UnpackedCode unpack_code(std::span<const std::byte> code, const Piece& piece, std::span<std::byte> room) {
  if (code.empty()) return {{}, 1};  // zeros
  ByteReader reader(code, "a chunk of casq:rate=");
  const float step = casq::step_of(reader.read<StepCode>());
  if (!(step >= kernels::kLeastStep && step <= kernels::kLargestStep))
    throw PayloadError("a chunk of casq:rate= has a step of " + std::to_string(step) + ", which there is not");
  return {casq::coder_in<ChunkDecoder>(room).unpack(reader.take(reader.left()), piece.elements()), step};
}

}  // namespace

std::size_t CasqRate::unpacked_bytes(const Piece& piece, std::size_t code) const {
  return sizeof(UnpackedCode) + casq::most_copy_bytes(piece.elements(), code);
}

float CasqRate::unpack(std::span<const std::byte> code, const Piece& piece, std::span<std::byte> unpacked, std::span<std::byte> room) const {
  const UnpackedCode found = unpack_code(code, piece, room);
  const auto copy = unpacked.subspan(sizeof(UnpackedCode));
  new (unpacked.data()) UnpackedCode{found.chunk.copy_to(copy), found.step};
  return found.chunk.bound(found.step);
}

void CasqRate::decode_unpacked(std::span<const std::byte> unpacked, float weight, bool past_caches, std::span<float> values) const {
  const UnpackedCode& code = *std::launder(reinterpret_cast<const UnpackedCode*>(unpacked.data()));
  if (past_caches)
    code.chunk.store_past_caches(code.step, weight, values);
  else
    code.chunk.store(code.step, weight, values);
}

void CasqRate::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                      std::span<std::byte> room) const {
  const UnpackedCode unpacked = unpack_code(code, piece, room);
  if (add)
    unpacked.chunk.add(unpacked.step, weight, values);
  else
    unpacked.chunk.store(unpacked.step, weight, values);
}

}  // namespace thinwire
