// What every message says beside its numbers: whether its sender's values are finite, and which pieces its sender has used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/work.h"
#include "kernels/opening.h"

namespace thinwire {

// A worker notes what it finds while it encodes, writes it into its message, and reads there what all workers together found.
// A piece counts as used if its gradient has any value but zero. Where there are residuals, one that no worker used keeps them.
class Head {
 public:
  Head(const Work& work, Scratch& scratch);
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  // Once for every piece, from any thread.
  void note(std::size_t piece, const kernels::Opened& opened) {
    used_[piece] = opened.gradient_nonzero ? 1 : 0;
    if (!opened.sum.finite) note_not_finite();
  }
  void note_not_finite() { finite_.store(false, std::memory_order_relaxed); }

  // Of this worker; once a message was read, of all workers together.
  bool finite() const { return finite_.load(std::memory_order_relaxed); }
  bool used(std::size_t piece) const { return used_[piece] != 0; }
  // Whether a piece's mean is 0 and its residual waits.
  bool is_skipped(std::size_t piece) const { return has_residuals_ && !used(piece); }

  // In messages that are added up, or of which the maximum is taken: so many numbers, each 0 or `one`.
  std::size_t numbers() const { return 1 + (has_residuals_ ? used_.size() : 0); }
  template <class T>
  void write(std::span<T> numbers, T one) const {
    numbers[0] = finite() ? T{} : one;
    for (std::size_t i = 1; i < numbers.size(); ++i) numbers[i] = used(i - 1) ? one : T{};
  }
  template <class T>
  void read(std::span<const T> numbers) {
    if (numbers[0] != T{}) note_not_finite();
    for (std::size_t i = 1; i < numbers.size(); ++i) used_[i - 1] = numbers[i] != T{} ? 1 : 0;
  }

  // In messages that are united: one word, as finding out what was used is the message.
  std::uint32_t word() const { return finite() ? 0 : 1; }
  void read_word(std::uint32_t word) {
    if (word != 0) note_not_finite();
  }

  // The same from a worker whose words are gathered. Throws PayloadError for one that means nothing.
  void read_gathered_word(std::uint32_t word, std::size_t rank);

  // In messages that are gathered: a byte, of which other values than 0 and 1 mean nothing, and for some pieces a bit each.
  static constexpr std::uint8_t kNotFinite = 1;
  std::uint8_t flags() const { return finite() ? 0 : kNotFinite; }

 private:
  bool has_residuals_;
  std::atomic<bool> finite_ = true;
  std::span<std::uint8_t> used_;
};

}  // namespace thinwire
