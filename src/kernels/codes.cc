#include "kernels/codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codes.cc"
#include "hwy/foreach_target.h"  // must come before the next three
#include "hwy/highway.h"
#include "kernels/codes-inl.h"
#include "kernels/groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {

void pack(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    for_each_group(codes.size(), Packing<constant()>(), Column(codes), CodesToPack<constant()>(packed));
  });
}

void unpack(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes) {
  with_constant_bits<kMaxCodeBits>(bits, [&](auto constant) HWY_ATTR {
    for_each_group(codes.size(), Unpacking<constant()>(), PackedCodes<constant()>(packed), Column(codes));
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {

HWY_EXPORT(pack);
HWY_EXPORT(unpack);

void pack(std::span<const std::uint8_t> codes, int bits, std::span<std::byte> packed) {
  HWY_DYNAMIC_DISPATCH(pack)(codes, bits, packed);
}
void unpack(std::span<const std::byte> packed, int bits, std::span<std::uint8_t> codes) {
  HWY_DYNAMIC_DISPATCH(unpack)(packed, bits, codes);
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
