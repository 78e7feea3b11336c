// The strategy in which levels add up: workers agree on norms, round to multiples of steps that follow from these, and sum the
// multiples in all-reduce, exactly.
//
// Two rounds: a max of norms and of the head's numbers, float32; a sum of words of 32 bits. With s levels of each sign the sums of W
// workers are whole numbers in [-W s, W s], fields of f = bits of 2 W s, floor(32/f) in a word. A piece has as many words as it needs,
// and its entry i is field floor(i / words) of word i mod words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/work.h"
#include "kernels/fields.h"

namespace thinwire {

// Entries of a piece as fields of its words.
class LevelFields {
 public:
  LevelFields(std::int32_t levels, int workers);

  std::size_t words(std::size_t entries) const { return (entries + fields() - 1) / fields(); }
  // `levels` are those from `first` on. Pre: words are as many as above.
  void add(std::span<const std::int32_t> levels, std::size_t first, std::span<std::int32_t> words) const;
  void take(std::span<const std::int32_t> words, std::size_t first, std::span<std::int32_t> levels) const;

 private:
  std::size_t fields() const { return 32 / static_cast<std::size_t>(width_); }
  kernels::Field field(std::size_t number) const { return {static_cast<int>(number) * width_, width_, limit_}; }
  template <class Words, class Body>
  void for_each_field(std::span<Words> words, std::size_t first, std::size_t count, const Body& body) const;

  int width_;
  std::int32_t limit_;  // of sums
  std::uint32_t biases_ = 0;
};

// A piece's levels, and what they are multiples of.
struct LevelsToWrite {
  const LevelFields& fields;
  std::span<std::int32_t> words;
  void put(std::span<const std::int32_t> levels, std::size_t first) const { fields.add(levels, first, words); }
};
struct LevelsToRead {
  const LevelFields& fields;
  std::span<const std::int32_t> words;
  void take(std::size_t first, std::span<std::int32_t> levels) const { fields.take(words, first, levels); }
};

// How values become levels. A piece has some entries, each of which is rounded to a level, and some norms.
class SummedCode {
 public:
  virtual ~SummedCode() = default;
  virtual std::int32_t levels() const = 0;  // of each sign
  virtual std::size_t entries(std::size_t elements) const = 0;
  virtual std::size_t norms(std::size_t elements) const = 0;
  // Floats that a thread needs for a piece beside its values.
  virtual std::size_t room_floats(std::size_t /*elements*/) const { return 0; }

  // A worker's own norms of values, which are finite.
  virtual void measure(const Piece& piece, std::span<const float> values, std::span<float> norms, std::span<float> room) const = 0;
  // What is kept of a norm, the largest of all workers', and handed to the others; it may be infinite or NaN.
  virtual float agreed(float norm) const { return norm; }
  // An upper bound of the magnitudes that means have, with norms up to that one.
  virtual double largest_mean(float norm) const = 0;
  // Writes levels; those that it does not write are 0.
  virtual void to_levels(const Piece& piece, std::span<const float> values, std::span<const float> norms, const LevelsToWrite& levels,
                         std::span<float> room) const = 0;
  // values <- weight * what levels stand for; or with `subtract` values <- values - that.
  virtual void from_levels(const Piece& piece, const LevelsToRead& levels, std::span<const float> norms, float weight, bool subtract,
                           std::span<float> values, std::span<float> room) const = 0;
};

Exchange sum_levels(const SummedCode& code, Work& work, Context& context);

}  // namespace thinwire
