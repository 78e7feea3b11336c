// Sparsifiers whose codes may have any length, which is foreseen (shared/foreseen_length.h).
#pragma once

#include <memory>

#include "compressors/shared/compressor.h"
#include "compressors/shared/foreseen_length.h"
#include "compressors/shared/reduce_coded.h"

namespace thinwire {

class ForeseenCodec : public Compressor, protected PieceCodec {
 public:
  explicit ForeseenCodec(Reduce reduce) : reduce_(reduce) {}
  Exchange exchange(Work& work, Context& context) const final { return reduce_coded(*this, reduce_, work, context); }
  bool chooses_by_link() const final { return reduce_ == Reduce::kAuto; }
  bool serves_owners() const final { return true; }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& /*parameter*/, std::uint64_t /*chunk*/) const final { return std::make_unique<ForeseenLength>(); }

 protected:
  // What a code is foreseen to take before anything is known.
  virtual std::size_t first_bytes(const Piece& piece) const = 0;

 private:
  bool has_fixed_length() const final { return false; }
  std::size_t usual_bytes(const Piece& piece, Pass pass) const final {
    return ForeseenLength::usual_bytes(piece, pass, first_bytes(piece), most_bytes(piece));
  }
  void foresee(std::span<const Piece* const> pieces, Pass pass, double bytes_an_element) const final {
    ForeseenLength::foresee(pieces, pass, bytes_an_element);
  }

  Reduce reduce_;
};

}  // namespace thinwire
