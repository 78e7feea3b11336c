// What the fuzz targets have in common. A target is a function of bytes: it returns whatever they are, or the process ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace thinwire::fuzz {

// Ends the process, in every build: what a target promises of any input does not hold for this one.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

// The fuzzer's bytes, taken from the front. When they are used up, everything taken is 0.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  template <class T>
  T number() {
    T value{};
    const std::size_t bytes = std::min(sizeof value, rest_.size());
    if (bytes > 0) std::memcpy(&value, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return value;
  }

  // From 0 to count - 1.
  std::size_t choose(std::size_t count) { return number<std::uint16_t>() % count; }

  // Flips bits of some short runs of `bytes`; none when the input is used up.
  void spoil(std::span<std::byte> bytes) {
    if (bytes.empty()) return;
    for (std::size_t runs = number<std::uint8_t>() % 8; runs > 0; --runs) {
      const std::size_t first = choose(bytes.size());
      const std::size_t last = std::min<std::size_t>(bytes.size(), first + number<std::uint8_t>());
      for (std::size_t i = first; i < last; ++i) bytes[i] ^= number<std::byte>();
    }
  }

  std::string text() {
    const auto all = std::exchange(rest_, {});
    return std::string(all.begin(), all.end());
  }

 private:
  std::span<const std::uint8_t> rest_;
};

}  // namespace thinwire::fuzz
