// thinwire: the library's compressors from the command line.
#include <algorithm>
#include <array>
#include <iostream>
#include <new>
#include <string>

#include "thinwire/errors.h"
#include "thinwire/version.h"
#include "tool/commands.h"

namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

constexpr const char* kFooter = R"(Specs name a compressor and its parameters: none, bf16, casq:bits=2.
`thinwire compressors` lists them.

Examples:
  thinwire compressors casq                                        one compressor in full
  thinwire exchange --compressor casq:bits=2 --input g.npy         how well and how small?
  thinwire bench --compressor casq:bits=2 --compressor bf16        how fast on this machine?
  thinwire inspect --input g.npy --html gradient.html              what does a gradient look like?
  thinwire compare --input g.npy                                   which compressor loses least?
  thinwire plan --link 1gbit --workers 4                           which one pays on a network?
  mpirun -n 4 thinwire allreduce --compressor casq:bits=2          the real thing, over the network
  thinwire COMMAND --help                                          more about a command

Exit codes: 0 done; 1 the job failed (a file, memory, an exchange); 2 the command line is wrong.
Errors are one line on stderr; with --json, stdout holds JSON and nothing else.)";

int report(std::string message, int code) {
  std::ranges::replace(message, '\n', ' ');
  std::cerr << "thinwire: error: " + message + "\n";  // in one piece, since mpirun mixes what its workers say
  return code;
}

int run(int argc, char** argv) {
  CLI::App app("Compresses gradients for data-parallel training on slow networks.", "thinwire");
  app.set_version_flag("--version", std::string("thinwire ") + thinwire::version());
  app.require_subcommand(0, 1);  // that there is one is checked after arguments that nobody knows
  app.footer(kFooter);
  const std::array commands = {thinwire::tool::add_compressors(app), thinwire::tool::add_exchange(app),
                               thinwire::tool::add_bench(app), thinwire::tool::add_allreduce(app),
                               thinwire::tool::add_inspect(app), thinwire::tool::add_compare(app),
                               thinwire::tool::add_plan(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return report(std::string(error.what()) + "; `thinwire --help` explains", kBadUsage);
  }
  if (app.get_subcommands().empty())
    return report("a command is needed: compressors, exchange, bench, allreduce, inspect, compare or plan; `thinwire --help` explains", kBadUsage);
  for (const auto& command : commands)
    if (command.app->parsed()) command.run();
  std::cout.flush();
  return std::cout ? 0 : report("the output cannot be written", kFailed);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const thinwire::ArgumentError& error) {
    return report(error.what(), kBadUsage);
  } catch (const std::bad_alloc&) {
    return report("there is not enough memory", kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kFailed);
  }
}
