// Bounded reading and writing of little-endian bytes. Foreign bytes are read through ByteReader alone.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "thinwire/errors.h"

namespace thinwire {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian and are not swapped");

// Reads from the front of a span; throws PayloadError, saying what was being read, where too little is left.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, const char* what) : bytes_(bytes), what_(what) {}

  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size())
      throw PayloadError(std::string(what_) + " ends too early: " + std::to_string(count) + " more bytes were needed, " +
                         std::to_string(bytes_.size()) + " are left");
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  template <class T>
  T read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  template <class T>
  void read_into(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (!values.empty()) std::memcpy(values.data(), take(values.size_bytes()).data(), values.size_bytes());
  }

  std::size_t left() const { return bytes_.size(); }

  // The version that stands first in what is saved.
  void expect_version(std::uint8_t supported) {
    if (const auto version = read<std::uint8_t>(); version != supported)
      throw PayloadError(std::string(what_) + " has version " + std::to_string(version) + "; this thinwire reads version " +
                         std::to_string(supported));
  }

  void expect_end() const {
    if (!bytes_.empty())
      throw PayloadError(std::string(what_) + " has " + std::to_string(bytes_.size()) + " bytes too many");
  }

 private:
  std::span<const std::byte> bytes_;
  const char* what_;
};

// Writes to the front of a span whose size was computed beforehand; writing past its end is a bug and throws
// std::logic_error.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> take(std::size_t count) {
    if (count > bytes_.size()) throw std::logic_error("thinwire: a payload is longer than its computed size");
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  template <class T>
  void write(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(take(sizeof(T)).data(), &value, sizeof(T));
  }

  template <class T>
  void write_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (!values.empty()) std::memcpy(take(values.size_bytes()).data(), values.data(), values.size_bytes());
  }

  std::size_t left() const { return bytes_.size(); }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace thinwire
