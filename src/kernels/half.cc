#include "kernels/half.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/half.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/formats-inl.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

template <class Format>
struct Encoding {
  float scale;
  HWY_INLINE void operator()(const float* values, Half* half) const {
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      store_as<Format>(hn::Mul(load(values, i), hn::Set(kFloat, scale)), half, i);
    }
  }
};

template <class Format>
struct Decoding {
  float scale;
  HWY_INLINE void operator()(const Half* half, float* values) const {
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      store(hn::Mul(load_as<Format>(half, i), hn::Set(kFloat, scale)), values, i);
    }
  }
};

template <class Format>
struct Subtracting {
  float scale;
  HWY_INLINE void operator()(const Half* half, float* values) const {
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      const Vector<float> decoded = hn::Mul(load_as<Format>(half, i), hn::Set(kFloat, scale));
      store(hn::Sub(load(values, i), decoded), values, i);
    }
  }
};

template <class Format>
struct Adding {
  HWY_INLINE void operator()(const Half* half, Half* total) const {
    for (std::size_t i = 0; i < kVectors<float>; ++i) {
      store_as<Format>(hn::Add(load_as<Format>(total, i), load_as<Format>(half, i)), total, i);
    }
  }
};

// Magnitudes of halves, too, order like their bits.
struct ScanningHalves {
  Lanes<Half> largest;
  HWY_INLINE void operator()(const Half* half) {
    for (std::size_t i = 0; i < kVectors<Half>; ++i) {
      const Vector<Half> magnitude = hn::And(load(half, i), hn::Set(Tag<Half>(), Half{0x7FFF}));
      largest[i] = hn::Max(largest[i], magnitude);
    }
  }
};

template <class Format>
Scan scan_as(std::span<const Half> half) {
  ScanningHalves scanning;
  for_each_group(half.size(), scanning, Column(half));
  const Half bits = scanning.largest.fold([](Half a, Half b) { return std::max(a, b); });
  const float largest = hn::GetLane(Format::decode(all(bits)));
  return {.finite = std::isfinite(largest), .largest = largest};
}

template <class Format>
void encode(std::span<const float> values, float scale, std::span<Half> half) {
  for_each_group(values.size(), Encoding<Format>{scale}, Column(values), Column(half));
}
template <template <class> class Operation, class Format>
void decode(std::span<const Half> half, float scale, std::span<float> values) {
  for_each_group(half.size(), Operation<Format>{scale}, Column(half), Column(values));
}
template <class Format>
void add(std::span<const Half> half, std::span<Half> total) {
  for_each_group(half.size(), Adding<Format>{}, Column(half), Column(total));
}

// Dispatch tables want functions, not templates.
void to_bf16(std::span<const float> values, float scale, std::span<Half> half) { encode<Bf16>(values, scale, half); }
void to_fp16(std::span<const float> values, float scale, std::span<Half> half) { encode<Fp16>(values, scale, half); }
void from_bf16(std::span<const Half> half, float scale, std::span<float> values) {
  decode<Decoding, Bf16>(half, scale, values);
}
void from_fp16(std::span<const Half> half, float scale, std::span<float> values) {
  decode<Decoding, Fp16>(half, scale, values);
}
void subtract_bf16(std::span<const Half> half, float scale, std::span<float> values) {
  decode<Subtracting, Bf16>(half, scale, values);
}
void subtract_fp16(std::span<const Half> half, float scale, std::span<float> values) {
  decode<Subtracting, Fp16>(half, scale, values);
}
void add_bf16(std::span<const Half> half, std::span<Half> total) { add<Bf16>(half, total); }
void add_fp16(std::span<const Half> half, std::span<Half> total) { add<Fp16>(half, total); }
Scan scan_bf16(std::span<const Half> half) { return scan_as<Bf16>(half); }
Scan scan_fp16(std::span<const Half> half) { return scan_as<Fp16>(half); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(to_bf16);
HWY_EXPORT(to_fp16);
HWY_EXPORT(from_bf16);
HWY_EXPORT(from_fp16);
HWY_EXPORT(subtract_bf16);
HWY_EXPORT(subtract_fp16);
HWY_EXPORT(add_bf16);
HWY_EXPORT(add_fp16);
HWY_EXPORT(scan_bf16);
HWY_EXPORT(scan_fp16);

void to_bf16(std::span<const float> values, float scale, std::span<std::uint16_t> half) {
  HWY_DYNAMIC_DISPATCH(to_bf16)(values, scale, half);
}
void to_fp16(std::span<const float> values, float scale, std::span<std::uint16_t> half) {
  HWY_DYNAMIC_DISPATCH(to_fp16)(values, scale, half);
}
void from_bf16(std::span<const std::uint16_t> half, float scale, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(from_bf16)(half, scale, values);
}
void from_fp16(std::span<const std::uint16_t> half, float scale, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(from_fp16)(half, scale, values);
}
void subtract_bf16(std::span<const std::uint16_t> half, float scale, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(subtract_bf16)(half, scale, values);
}
void subtract_fp16(std::span<const std::uint16_t> half, float scale, std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(subtract_fp16)(half, scale, values);
}
void add_bf16(std::span<const std::uint16_t> half, std::span<std::uint16_t> total) {
  HWY_DYNAMIC_DISPATCH(add_bf16)(half, total);
}
void add_fp16(std::span<const std::uint16_t> half, std::span<std::uint16_t> total) {
  HWY_DYNAMIC_DISPATCH(add_fp16)(half, total);
}
Scan scan_bf16(std::span<const std::uint16_t> half) { return HWY_DYNAMIC_DISPATCH(scan_bf16)(half); }
Scan scan_fp16(std::span<const std::uint16_t> half) { return HWY_DYNAMIC_DISPATCH(scan_fp16)(half); }

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
