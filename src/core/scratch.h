// Reusable memory for one lane's messages.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace thinwire {

// Memory is taken piece by piece and given back all at once; after the first rounds nothing is allocated any more.
class Scratch {
 public:
  // Uninitialised, aligned to 64 bytes, valid until reset().
  template <class T>
  std::span<T> take(std::size_t count) {
    return {reinterpret_cast<T*>(take_bytes(count * sizeof(T))), count};
  }

  // Gives everything back. Spans taken before must not be used any more.
  void reset();

  std::size_t capacity() const;

 private:
  struct AlignedDelete {
    void operator()(std::byte* memory) const noexcept;
  };
  struct Block {
    std::unique_ptr<std::byte[], AlignedDelete> memory;
    std::size_t size = 0;
  };
  std::byte* take_bytes(std::size_t bytes);
  void add_block(std::size_t bytes);

  std::vector<Block> blocks_;  // the last one is in use
  std::size_t used_ = 0;       // of the last block
  bool has_grown_ = false;     // after the first round
};

// The first `count` elements of memory that is taken piece by piece, in order of falling alignment.
template <class T>
std::span<T> carve(std::span<std::byte>& room, std::size_t count) {
  const auto taken = room.first(count * sizeof(T));
  room = room.subspan(taken.size());
  return {reinterpret_cast<T*>(taken.data()), count};
}

}  // namespace thinwire
