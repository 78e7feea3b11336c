// What exchanges of all kinds do with a message's pieces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "core/context.h"
#include "core/scratch.h"
#include "core/work.h"
#include "kernels/opening.h"

namespace thinwire {

// Work of so many elements leaves nothing in the caches for those who read its means or residuals.
constexpr std::uint64_t kPastCaches = std::uint64_t{1} << 20;

// values <- scale * gradient + residual, an empty one counting as zeros; both stay as they are. values may be the residual's memory.
kernels::Opened read_values(const GradientSpan& gradient, float scale, std::span<const float> residual, std::span<float> values);
// values <- what is to be sent of a piece, gradient plus residual; neither is changed. values may be the piece's next residual.
kernels::Opened read_values(const Piece& piece, const Work& work, std::span<float> values);
// Those from its first-th on.
kernels::Opened read_values(const Piece& piece, const Work& work, std::size_t first, std::span<float> values);

// Where read_values() would read them, if that is all floats in memory.
std::optional<kernels::Unopened> unopened(const Piece& piece, const Work& work);

// A message of the same pieces with other memory in the gradients' place: floats, piece after piece, which no scale is left on.
Work with_gradients(const Work& work, std::span<float> values, Context& context);

// --- past the commit point

// Where to write a piece's mean and what this worker did not send: where they belong if that is memory of floats, else room in
// scratch, as long as the piece. `left` is empty where nobody wants to know it.
struct CommitRoom {
  std::span<float> left;
  std::span<float> mean;
};
class CommitRooms {
 public:
  CommitRooms(const Work& work, Context& context) : CommitRooms(work, false, context) {}
  // is_cold: what is reduced is in no cache any more, so that much of it is better decoded in one, and written past them from there.
  CommitRooms(const Work& work, bool is_cold, Context& context);
  // Reads the piece's values into `left`. To be called before its mean is written.
  CommitRoom read(const Work& work, std::size_t piece, std::size_t thread) const;
  // For its mean alone.
  std::span<float> mean(const Work& work, std::size_t piece, std::size_t thread) const;
  // The place of a mean that may be written to it past the caches, times 1 / gradient_scale; else nothing.
  std::span<float> past_caches(const Work& work, std::size_t piece) const;

 private:
  std::span<float> own(std::span<float> rooms, const Piece& piece, std::size_t thread) const {
    return rooms.subspan(thread * longest_, piece.elements());
  }

  std::size_t longest_ = 0;
  bool past_caches_;
  std::span<float> lefts_, means_;  // one for each thread
};

// room.mean holds the mean, or nothing if that is in its place; room.left what this worker did not send: of its values, less its own part of
// the mean. owed: what is to be added to that beyond its own error; may be empty.
void commit(const Work& work, std::size_t piece, const CommitRoom& room, std::span<const float> owed = {});
// The same for a piece whose values this worker has added to the mean as they are.
void commit_added(const Work& work, std::size_t piece, std::span<const float> mean, std::span<const float> owed);
// The same for a piece that no worker used: its mean is 0, and its residual waits for the next step.
void skip(const Piece& piece);
// The same for a piece that travelled without loss.
void commit_lossless(const Work& work, std::size_t piece, std::span<const float> mean);
// The same for part of a piece: the mean of its gradient, and the residual, which holds already what is left of it; empty for none.
void store_mean(std::span<const float> mean, float gradient_scale, const GradientSpan& gradient, std::span<float> residual);

// Whether means of that magnitude can be stored as gradients.
inline bool fits(const Work& work, double largest_mean) { return largest_mean <= static_cast<double>(work.largest_mean); }

// Calls body(piece, index, thread) for every piece, as ThreadPool does.
template <class Body>
void for_each_piece(const Work& work, Context& context, const Body& body) {
  context.threads().for_each(work.pieces.size(), work.elements,
                             [&](std::size_t i, std::size_t thread) { body(work.pieces[i], i, thread); });
}

// Where each piece's part lies in buffers that hold something of every piece of a message, in their order.
class PieceParts {
 public:
  // length(i): of the i-th piece's part.
  template <class Length>
  PieceParts(const Work& work, Context& context, const Length& length) : PieceParts(work.pieces.size(), context, length) {}
  template <class Length>
  PieceParts(std::size_t pieces, Context& context, const Length& length) : begins_(context.scratch().take<std::size_t>(pieces + 1)) {
    begins_[0] = 0;
    for (std::size_t i = 0; i < pieces; ++i) begins_[i + 1] = begins_[i] + length(i);
  }
  std::size_t count() const { return begins_.back(); }
  template <class T>
  std::span<T> of(std::span<T> buffer, std::size_t i) const {
    return buffer.subspan(begins_[i], begins_[i + 1] - begins_[i]);
  }

 private:
  std::span<std::size_t> begins_;
};

// Calls body(first, count, thread), as ThreadPool does, for parts that make up `elements`: of a chunk's length each, the
// last perhaps shorter.
template <class Body>
void for_each_part(std::uint64_t elements, Context& context, const Body& body) {
  const std::uint64_t parts = (elements + kChunkElements - 1) / kChunkElements;
  context.threads().for_each(parts, elements, [&](std::size_t part, std::size_t thread) {
    const std::uint64_t first = part * kChunkElements;
    body(first, std::min(kChunkElements, elements - first), thread);
  });
}

// The elements of the longest piece.
std::size_t longest_piece(const Work& work);

// Whether values are finite, and of no greater magnitude.
bool are_within(std::span<const float> values, double most, Context& context);
// Whether sums over all workers are finite, and their means can be stored.
bool sums_fit(std::span<const float> sums, const Work& work, Context& context);

}  // namespace thinwire
