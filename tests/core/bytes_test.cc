#include "core/bytes.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace thinwire {
namespace {

TEST(Bytes, WhatIsWrittenIsRead) {
  std::array<std::byte, 15> bytes{};
  ByteWriter writer(bytes);
  writer.write(std::uint8_t{7});
  writer.write(std::uint16_t{0x1234});
  const std::array<float, 3> values{1.5f, -2.0f, 3.0f};
  writer.write_all(std::span<const float>(values));
  EXPECT_EQ(writer.left(), 0u);
  EXPECT_EQ(bytes[1], std::byte{0x34});  // little-endian

  ByteReader reader(bytes, "a test");
  EXPECT_EQ(reader.read<std::uint8_t>(), 7);
  EXPECT_EQ(reader.read<std::uint16_t>(), 0x1234);
  std::array<float, 3> read{};
  reader.read_into(std::span<float>(read));
  EXPECT_EQ(read, values);
  reader.expect_end();
}

TEST(ByteReader, RefusesToReadPastTheEnd) {
  const std::vector<std::byte> bytes(3);
  ByteReader reader(bytes, "a test");
  reader.take(1);
  try {
    reader.read<std::uint32_t>();
    FAIL();
  } catch (const PayloadError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("a test"), testing::HasSubstr("4 more bytes"),
                                             testing::HasSubstr("2 are left")));
  }
  EXPECT_EQ(reader.left(), 2u);  // nothing was taken
  EXPECT_THROW(reader.take(static_cast<std::size_t>(-1)), PayloadError);
  EXPECT_THROW(reader.expect_end(), PayloadError);
  reader.take(2);
  EXPECT_NO_THROW(reader.expect_end());
}

TEST(ByteWriter, WritingPastTheEndIsABug) {
  std::array<std::byte, 2> bytes{};
  ByteWriter writer(bytes);
  EXPECT_THROW(writer.write(std::uint32_t{1}), std::logic_error);
}

}  // namespace
}  // namespace thinwire
