// A 64-bit FNV-1a hash, for telling whether workers were given the same things. Not for tables, not for security.
#pragma once

#include <cstdint>
#include <string_view>

namespace thinwire {

class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
    add(text.size());
  }
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) add_byte(static_cast<unsigned char>(number >> shift));
  }
  std::uint64_t value() const { return value_; }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }

  std::uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace thinwire
