#include "kernels/targets.h"

#include <cstdint>
#include <stdexcept>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/targets.cc"
#include "hwy/foreach_target.h"  // must come before the next one
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thinwire::kernels {
namespace HWY_NAMESPACE {
namespace {
const char* target_name() { return hwy::TargetName(HWY_TARGET); }
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace thinwire::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire::kernels {
HWY_EXPORT(target_name);

namespace {

// Highway numbers better targets lower. The fallback runs everywhere, so the processor does not report it.
constexpr std::int64_t kFallback = HWY_TARGETS & (HWY_EMU128 | HWY_SCALAR);

// Asked once only: SupportedTargets() puts the best target into use, beside telling.
std::int64_t available() {
  static const std::int64_t targets = (hwy::SupportedTargets() | kFallback) & HWY_TARGETS;
  return targets;
}

template <class Visit>
void for_each_available(const Visit& visit) {
  for (std::int64_t left = available(); left != 0; left &= left - 1) visit(left & -left);
}

std::string comma_separated(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::int64_t target_called(const std::string& name) {
  std::int64_t found = 0;
  for_each_available([&](std::int64_t target) {
    if (name == hwy::TargetName(target)) found = target;
  });
  if (found != 0) return found;
  throw std::invalid_argument("SIMD target '" + name + "' is not available here; available: " +
                              comma_separated(available_targets()));
}

}  // namespace

std::vector<std::string> available_targets() {
  std::vector<std::string> names;
  for_each_available([&](std::int64_t target) { names.emplace_back(hwy::TargetName(target)); });
  return names;
}

std::string current_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

void force_target(const std::string& name) {
  hwy::GetChosenTarget().Update(name.empty() ? available() : target_called(name));
}

}  // namespace thinwire::kernels
#endif  // HWY_ONCE
