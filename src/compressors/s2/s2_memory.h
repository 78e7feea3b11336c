// What S2 remembers of a parameter: how many of its rows were used, from which all workers alike guess how many will be.
#pragma once

#include "compressors/shared/carrying_memory.h"

namespace thinwire {

class S2Memory : public CarryingMemory {
 public:
  using CarryingMemory::CarryingMemory;

  // Shares of the parameter's elements; the same on every worker.
  struct Seen {
    float by_any = 0;   // that some worker used
    float by_most = 0;  // that the worker with the most used, at most a fifth too many
  };

  std::uint64_t steps() const { return steps_; }
  // Of the last step; nothing before the first.
  const Seen& seen() const { return committed_; }
  void see(const Seen& seen) { working_ = seen; }

  void begin_step() override;
  void commit_step() override;
  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved) override;

 private:
  static constexpr std::uint8_t kVersion = 1;

  std::uint64_t steps_ = 0;
  Seen committed_;
  Seen working_;
};

// The memory of a piece that S2 has made one for.
inline S2Memory& memory_of(const Piece& piece) { return static_cast<S2Memory&>(*piece.memory); }

}  // namespace thinwire
