#include "compressors/shared/elias.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/bit_string.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using Numbers = std::vector<std::uint8_t>;
constexpr std::uint8_t kZero = 127;

std::vector<std::byte> string_of(const Numbers& numbers, EliasForm form) {
  const std::size_t bytes = (elias_bits({numbers, kZero}, form) + 7) / 8;
  std::vector<std::byte> string(bytes + kEliasReadsBeyond);
  write_elias({numbers, kZero}, form, string.data());
  return string;
}

Numbers read(const std::vector<std::byte>& string, EliasForm form, std::size_t count, std::uint8_t zero = kZero) {
  Numbers numbers(count);
  read_elias(string.data(), string.size() - kEliasReadsBeyond, form, zero, numbers);
  return numbers;
}

// Seldom other than 0, and then of any magnitude.
Numbers random_numbers(std::size_t count, double density, std::mt19937& random) {
  Numbers numbers(count, kZero);
  for (auto& number : numbers)
    if (std::uniform_real_distribution<>()(random) < density) number = static_cast<std::uint8_t>(random() % 255);
  return numbers;
}

class Forms : public testing::TestWithParam<EliasForm> {};
INSTANTIATE_TEST_SUITE_P(Elias, Forms, testing::Values(EliasForm::kSparse, EliasForm::kDense));

TEST_P(Forms, WhatIsReadIsWhatWasWritten) {
  std::mt19937 random(1);
  for (const std::size_t count : {0U, 1U, 2U, 7U, 300U, 32768U, 65536U})
    for (const double density : {0.0, 0.00005, 0.01, 0.3, 1.0}) {
      const Numbers numbers = random_numbers(count, density, random);
      EXPECT_EQ(read(string_of(numbers, GetParam()), GetParam(), count), numbers) << count << " " << density;
    }
}

// Bits as in the header's examples: levels 3, 0, 0, 0, -1.
TEST(Elias, StringsAreThoseOfTheDefinition) {
  const Numbers numbers = {kZero + 3, kZero, kZero, kZero, kZero - 1};
  const auto bits = [&](EliasForm form) {
    const auto string = string_of(numbers, form);
    std::string text;
    for (std::size_t i = 0; i < elias_bits({numbers, kZero}, form); ++i) text += (kernels::bits_at(string.data(), i) & 1) != 0 ? '1' : '0';
    return text;
  };
  EXPECT_EQ(bits(EliasForm::kSparse), "0" "0" "110" "101000" "1" "0" "0");
  EXPECT_EQ(bits(EliasForm::kDense), "101000" "0" "0" "0" "0" "100" "1");
}

TEST_P(Forms, WhatIsNoStringIsRefused) {
  std::mt19937 random(2);
  const Numbers numbers = random_numbers(100, 0.3, random);
  const auto good = string_of(numbers, GetParam());
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THROW(read(longer, GetParam(), 100), PayloadError);
  auto shorter = good;
  shorter.erase(shorter.begin() + 10);
  shorter.resize(good.size() - 10);
  EXPECT_THROW(read(shorter, GetParam(), 100), PayloadError);
  EXPECT_THROW(read(good, GetParam(), 50), PayloadError);
  EXPECT_THROW(read(good, GetParam(), 200), PayloadError);
  EXPECT_THROW(read(good, GetParam(), 100, 3), PayloadError);  // levels beyond 3
  const std::size_t bits = elias_bits({numbers, kZero}, GetParam());
  ASSERT_NE(bits % 8, 0U);
  auto filled = good;
  filled[bits / 8] |= std::byte{0x80};
  EXPECT_THROW(read(filled, GetParam(), 100), PayloadError);
  const std::vector<std::byte> ones(20 + kEliasReadsBeyond, std::byte{0xff});
  EXPECT_THROW(read(ones, GetParam(), 100), PayloadError);
}

// Any bytes are levels or refused; what is read is written as it was.
TEST_P(Forms, AnyBytes) {
  std::mt19937 random(3);
  int read_whole = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> string(random() % 6 + kEliasReadsBeyond);
    std::generate(string.begin(), string.end() - kEliasReadsBeyond, [&] { return static_cast<std::byte>(random()); });
    const std::size_t count = random() % 12;
    try {
      EXPECT_EQ(string_of(read(string, GetParam(), count), GetParam()), string);
      ++read_whole;
    } catch (const PayloadError&) {
    }
  }
  EXPECT_GT(read_whole, 10);
}

}  // namespace
}  // namespace thinwire
