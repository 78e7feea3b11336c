// casq:rate=: entropy-coded levels of one step for all parameters, a given number of bits an entry. docs/rate.md is about the method.
//
// 1. The step D. Before a step's first reduction a common D follows from what all parameters' codes have taken at their last steps, and how
//    fast that falls as D grows (casq_rate_memory.h): it tells what each message is to take. By a sample of a message's values its D then
//    becomes the one at which it takes that (rate_control.h). Each worker has its own; it travels with every chunk.
// 2. Encode, for each chunk by itself (rate_chunk.h). Where a message's codes take a quarter more, or less, than was foretold all the same, the
//    chunks that are to blame are encoded again, with steps of their own.
//    Messages are foreseen to be as long as the longest of the last step; of one that chance makes longer the longest chunks are encoded again.
// 3. Wire (docs/wire_format.md): lengths, and for each chunk D and its code, nothing for zeros. What is foreseen travels in one round; the rest
//    of messages that are meant to be longer takes another.
// 4. Decode to the cells' means; what a worker's values and its own code differ by stays in its residual.
//
// Rounds: one gather a step; reduce=scatter: a scatter, and a gather of means, which are encoded at the rate `second`. An owner adds its own
// values as they are.
// Memory passes: encode reads gradient and residual once, and writes what its code leaves; decode writes means; past the commit point both are
// read once more, and written as residual and mean.
#pragma once

#include <array>

#include "compressors/casq/casq_rate_memory.h"
#include "compressors/shared/compressor.h"
#include "compressors/shared/reduce_coded.h"

namespace thinwire {

struct CasqRateOptions {
  double rate = 1;    // bits an entry
  double second = 1;  // those of means, with reduce=scatter
  double weight = 0;  // a parameter's step is its root mean square to this power times the common one
  Reduce reduce = Reduce::kGather;
};

class CasqRate : public Compressor, private Codec {
 public:
  static constexpr std::uint8_t kWireId = 19;
  static constexpr std::uint8_t kWireVersion = 2;

  explicit CasqRate(const CasqRateOptions& options) : options_(options) {}

  Exchange exchange(Work& work, Context& context) const override;
  bool chooses_by_link() const override { return options_.reduce == Reduce::kAuto; }
  bool serves_owners() const override { return true; }
  // Of half of that, encoding takes a quarter longer.
  std::uint64_t fewest_chunk_elements() const override { return thinwire::fewest_chunk_elements(options_.reduce, kChunkElements / 2); }
  bool goes_by_neighbours() const override { return true; }  // blocks have classes
  bool keeps_old_residual() const override { return true; }  // the new one is written as values are encoded
  bool depends_on_scale() const override { return true; }  // a step's width follows from earlier steps' values
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t chunk) const override;
  void plan_step(std::span<CompressorMemory*> memories) const override;

 private:
  class MessageEncoder;

  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override;
  bool has_fixed_length() const override { return false; }
  bool unpacks_codes() const override { return true; }
  std::size_t unpacked_bytes(const Piece& piece, std::size_t code) const override;
  float unpack(std::span<const std::byte> code, const Piece& piece, std::span<std::byte> unpacked, std::span<std::byte> room) const override;
  void decode_unpacked(std::span<const std::byte> unpacked, float weight, bool past_caches, std::span<float> values) const override;
  bool owners_add_values() const override { return true; }
  std::size_t usual_bytes(const Piece& piece, Pass pass) const override;
  void foresee(std::span<const Piece* const> pieces, Pass pass, double bytes_an_element) const override;
  bool encode(const Encoding& encoding, Context& context) const override;
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;

  std::array<double, 2> rates() const { return {options_.rate, options_.second}; }
  double rate(Pass pass) const { return rates()[static_cast<std::size_t>(pass)]; }

  CasqRateOptions options_;
};

}  // namespace thinwire
