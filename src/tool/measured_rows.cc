#include "tool/measured_rows.h"

#include <string_view>

#include "thinwire/errors.h"
#include "thinwire/registry.h"

namespace thinwire::tool {

bool set_spec(const std::string& spec, int per_host, bool has_hooks, PlanOptions& plan) {
  constexpr std::string_view kOurs = "thinwire:";
  std::string_view name = spec;
  const auto had = [&](std::string_view prefix) {
    if (!name.starts_with(prefix)) return false;
    name.remove_prefix(prefix.size());
    return true;
  };
  const bool on_two_levels = had(kOnTwoLevels), is_ours = had(kOurs) || on_two_levels || !has_hooks;
  const bool is_pytorchs = !is_ours && (name == "bf16" || name == "fp16" || name.starts_with("powersgd"));
  if (is_pytorchs || on_two_levels != (per_host > 1)) return false;
  try {
    plan.specs = {canonical_spec(std::string(name))};
  } catch (const Error&) {
    return false;
  }
  plan.per_host = per_host;
  return true;
}

}  // namespace thinwire::tool
