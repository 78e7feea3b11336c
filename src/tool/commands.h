// The tool's commands. Each adds itself to the command line and returns what to do once that has been parsed.
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

namespace thinwire::tool {

struct Command {
  CLI::App* app = nullptr;
  std::function<void()> run;  // prints to std::cout; throws ArgumentError for bad usage, anything else for a failure
};

// Checks an option: CLI11 itself would take -1 for a large number.
inline CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const auto check = [least, most](const std::string& text) {
    std::uint64_t number = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool good = problem == std::errc() && end == text.data() + text.size() && number >= least && number <= most;
    return good ? std::string()
                : "'" + text + "' is not a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  };
  return CLI::Validator(check, "");
}

Command add_compressors(CLI::App& tool);
Command add_exchange(CLI::App& tool);
Command add_bench(CLI::App& tool);
Command add_allreduce(CLI::App& tool);
Command add_inspect(CLI::App& tool);
Command add_compare(CLI::App& tool);
Command add_plan(CLI::App& tool);

}  // namespace thinwire::tool
