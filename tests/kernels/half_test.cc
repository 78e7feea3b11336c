#include "kernels/half.h"

#include <functional>

#include "kernels/every_target.h"
#include "kernels/inputs.h"
#include "kernels/plain_half.h"
#include "kernels/plain_sums.h"

namespace thinwire::kernels {
namespace {

// A 16-bit format beside the kernels for it.
struct Format : HalfFormat {
  std::function<void(std::span<const float>, float, std::span<std::uint16_t>)> to;
  std::function<void(std::span<const std::uint16_t>, float, std::span<float>)> from;
  std::function<void(std::span<const std::uint16_t>, float, std::span<float>)> subtract;
  std::function<void(std::span<const std::uint16_t>, std::span<std::uint16_t>)> add;
  std::function<Scan(std::span<const std::uint16_t>)> scan;
};

const Format kFormats[] = {{kBf16, to_bf16, from_bf16, subtract_bf16, add_bf16, scan_bf16},
                           {kFp16, to_fp16, from_fp16, subtract_fp16, add_fp16, scan_fp16}};

class HalfTest : public EveryTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HalfTest, all_targets(), target_name);

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  return halves;
}

template <class Check>
void for_each_format(const Check& check) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    check(format);
  }
}

TEST_P(HalfTest, EveryHalfDecodesExactlyAndComesBack) {
  for_each_format([](const Format& format) {
    const std::vector<std::uint16_t> halves = all_halves();
    std::vector<float> values(halves.size());
    std::vector<std::uint16_t> again(halves.size());
    format.from(halves, 1.0F, values);
    format.to(values, 1.0F, again);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      expect_float(values[i], static_cast<float>(format.decode(halves[i])));
      if (is_nan(format, halves[i])) {
        ASSERT_TRUE(is_nan(format, again[i])) << i;
      } else {
        ASSERT_EQ(again[i], halves[i]);
      }
    }
  });
}

TEST_P(HalfTest, RoundsToNearestEvenAroundEveryHalfAndMidpoint) {
  for_each_format([](const Format& format) {
    std::vector<float> values;
    for (unsigned half = 0; half < format.infinity(); ++half) {
      const double low = format.decode(static_cast<std::uint16_t>(half));
      const double high = half + 1 < format.infinity() ? format.decode(static_cast<std::uint16_t>(half + 1))
                                                       : std::ldexp(1, format.bias() + 1);
      const float middle = static_cast<float>((low + high) / 2);
      for (const float x : {static_cast<float>(low), middle}) {
        for (const float near : {std::nextafter(x, 0.0F), x, std::nextafter(x, 2 * x + 1)}) {
          values.push_back(near);
          values.push_back(-near);
        }
      }
    }
    std::vector<std::uint16_t> half(values.size());
    format.to(values, 1.0F, half);
    for (std::size_t i = 0; i < values.size(); ++i) expect_half(format, half[i], values[i]);
  });
}

std::vector<Content> all_contents(std::size_t n) {
  std::vector<Content> contents = finite_contents(n);
  for (Content& content : non_finite_contents(n)) contents.push_back(std::move(content));
  contents.push_back(with_one("largest float", n, std::numeric_limits<float>::max()));
  contents.push_back({"small", normal_values(n, 3, 1e-6F)});
  contents.push_back({"large", normal_values(n, 4, 3e4F)});
  return contents;
}

// Calls check(format, values) for every format, size, content and alignment.
template <class Check>
void for_each_input(const Check& check) {
  for (const std::size_t n : kSizes) {
    for (const Content& content : all_contents(n)) {
      for (const std::size_t offset : {0, 1}) {
        SCOPED_TRACE(content.name + ", n=" + std::to_string(n) + ", offset=" + std::to_string(offset));
        for_each_format([&](const Format& format) { check(format, Buffer<float>(content.values, offset)); });
      }
    }
  }
}

// Every half, every midpoint between two, and what is next to those.
TEST(SingleHalf, IsAsByTheDefinition) {
  for (std::uint32_t bits = 0; bits < 1U << 16; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    expect_float(value_of_bf16(half), static_cast<float>(kBf16.decode(half)));
    for (const std::uint32_t rest : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const auto value = std::bit_cast<float>(bits << 16 | rest);
      expect_half(kBf16, bf16_of(value), value);
    }
  }
}

TEST_P(HalfTest, ToScalesInFloatAndRoundsOnce) {
  for_each_input([](const Format& format, const Buffer<float>& input) {
    for (const float scale : {1.0F, 0.3F}) {
      Buffer<std::uint16_t> half(input.span().size(), 1);
      format.to(input.span(), scale, half.span());
      for (std::size_t i = 0; i < half.span().size(); ++i) expect_half(format, half.span()[i], scale * input.span()[i]);
      EXPECT_TRUE(half.untouched_before());
    }
  });
}

TEST_P(HalfTest, FromScalesInFloat) {
  for_each_input([](const Format& format, const Buffer<float>& input) {
    const Buffer<std::uint16_t> half(encoded(format, input.span()), 1);
    Buffer<float> values(input.span().size(), 1);
    format.from(half.span(), 0.3F, values.span());
    for (std::size_t i = 0; i < values.span().size(); ++i) {
      expect_float(values.span()[i], static_cast<float>(format.decode(half.span()[i])) * 0.3F);
    }
    EXPECT_TRUE(values.untouched_before());
  });
}

TEST_P(HalfTest, SubtractLeavesWhatRoundingLost) {
  for_each_input([](const Format& format, Buffer<float> input) {
    const std::vector<float> before = input.elements();
    const Buffer<std::uint16_t> half(encoded(format, before), 1);
    format.subtract(half.span(), 0.3F, input.span());
    for (std::size_t i = 0; i < before.size(); ++i) {
      const float decoded = static_cast<float>(format.decode(half.span()[i])) * 0.3F;
      expect_float(input.span()[i], before[i] - decoded);
    }
    EXPECT_TRUE(input.untouched_before());
  });
}

TEST_P(HalfTest, AddRoundsTheFloatSum) {
  for_each_input([](const Format& format, const Buffer<float>& input) {
    const Buffer<std::uint16_t> half(encoded(format, input.span()), 1);
    const std::vector<std::uint16_t> before = encoded(format, normal_values(input.span().size(), 9));
    Buffer<std::uint16_t> total(before, 1);
    format.add(half.span(), total.span());
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto first = static_cast<float>(format.decode(before[i]));
      const auto second = static_cast<float>(format.decode(half.span()[i]));
      expect_half(format, total.span()[i], first + second);
    }
    EXPECT_TRUE(total.untouched_before());
  });
}

TEST_P(HalfTest, ScansAsItsValuesAre) {
  for_each_input([](const Format& format, const Buffer<float>& input) {
    const Buffer<std::uint16_t> half(encoded(format, input.span()), 1);
    std::vector<float> values;
    for (const std::uint16_t bits : half.span()) values.push_back(static_cast<float>(format.decode(bits)));
    expect_scanned(format.scan(half.span()), values);
  });
}

TEST_P(HalfTest, ScanSeesEveryHalfAtAnyPlace) {
  for_each_format([](const Format& format) {
    std::vector<std::uint16_t> half(50, 0x8000);
    for (const std::uint16_t bits : all_halves()) {
      const std::size_t place = bits % half.size();
      half[place] = bits;
      const float value[] = {static_cast<float>(format.decode(bits))};
      expect_scanned(format.scan(half), value);
      half[place] = 0x8000;
    }
  });
}

TEST_P(HalfTest, EveryHalfAddsToEveryExponent) {
  for_each_format([](const Format& format) {
    const std::vector<std::uint16_t> halves = all_halves();
    for (unsigned other = 1; other < format.infinity(); other += (1U << format.mantissa_bits) + 37) {
      std::vector<std::uint16_t> total(halves.size(), static_cast<std::uint16_t>(other));
      format.add(halves, total);
      const float second = static_cast<float>(format.decode(static_cast<std::uint16_t>(other)));
      for (std::size_t i = 0; i < halves.size(); ++i) {
        expect_half(format, total[i], static_cast<float>(format.decode(halves[i])) + second);
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::kernels
