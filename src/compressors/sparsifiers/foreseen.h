// Sparsifiers whose codes may have any length. A parameter's messages are foreseen to be as long as the longest of its last step, and a
// sixteenth, as numbers of entries vary; so they travel in one round but where gradients change, or nothing is known yet. No result depends
// on it.
#pragma once

#include <array>

#include "compressors/shared/compressor.h"
#include "compressors/shared/reduce_coded.h"

namespace thinwire {

class ForeseenCodec : public Compressor, protected PieceCodec {
 public:
  explicit ForeseenCodec(Reduce reduce) : reduce_(reduce) {}
  Exchange exchange(Work& work, Context& context) const final { return reduce_coded(*this, reduce_, work, context); }
  bool chooses_by_link() const final { return reduce_ == Reduce::kAuto; }
  bool serves_owners() const final { return true; }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter) const final;

 protected:
  // What a code is foreseen to take before anything is known.
  virtual std::size_t first_bytes(const Piece& piece) const = 0;

 private:
  bool has_fixed_length() const final { return false; }
  std::size_t usual_bytes(const Piece& piece, Pass pass) const final;
  void foresee(std::span<const Piece* const> pieces, Pass pass, double bytes_an_element) const final;

  Reduce reduce_;
};

// What the longest message of a parameter's last step has taken for each element, by passes; 0 where there was none.
class ForeseenLength : public CompressorMemory {
 public:
  float bytes_an_element(Pass pass) const { return committed_[static_cast<std::size_t>(pass)]; }
  void note(Pass pass, float bytes);
  void begin_step() override { noted_ = {}; }
  void commit_step() override;
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  static constexpr std::uint8_t kVersion = 1;
  using Lengths = std::array<float, 2>;
  Lengths committed_{}, noted_{};
};

}  // namespace thinwire
