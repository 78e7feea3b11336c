// What pages with pictures share.
#pragma once

#include <string>

namespace thinwire::tool {

// Text as HTML shows it.
inline std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else result += c;
  }
  return result;
}

}  // namespace thinwire::tool
