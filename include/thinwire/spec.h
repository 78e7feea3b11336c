// Spec strings: `name[:key=value,...]`, with stages joined by '/': "casq:bits=2", "gradiveq:ratio=8/qsgd:bits=4".
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thinwire {

struct SpecStage {
  std::string name;
  std::vector<std::pair<std::string, std::string>> values;  // in the order given; no key twice
};

struct Spec {
  std::vector<SpecStage> stages;  // at least one

  // Checks the form only; names and values are checked against the registry. Throws ArgumentError.
  static Spec parse(std::string_view text);
  std::string text() const;
};

}  // namespace thinwire
