// Rules as JSON: {"*.bias": "none", "layer4.*": "casq:bits=1"}; the first pattern that matches decides.
#pragma once

#include <string>
#include <vector>

#include "thinwire/reducer.h"

namespace thinwire::tool {

// `text`: the JSON object itself, or the path of a file that holds it, with or without '@' before it. Patterns and
// specs are not checked. Throws ArgumentError for what is no such object, Error for a file that cannot be read.
std::vector<Rule> parse_rules(const std::string& text);

}  // namespace thinwire::tool
