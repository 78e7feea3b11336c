// Runs a fuzz target without a fuzzer, on a corpus and on variants of its inputs, the same in every run:
//
//   fuzz_NAME [--variants=N] FILE|FOLDER ...
//
// Until it ends well, the input at hand lies in fuzz_NAME.input in the working folder, whatever ends the process.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_input.h"

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// In an order that does not depend on the file system.
std::vector<std::string> read_all(const fs::path& path) {
  std::vector<fs::path> files;
  if (fs::is_directory(path))
    for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  else
    files.push_back(path);
  std::ranges::sort(files);
  std::vector<std::string> inputs;
  for (const fs::path& file : files) inputs.push_back(read(file));
  return inputs;
}

// An input with one to eight small changes, some of them taken from another one.
std::string variant(std::string input, const std::string& other, std::mt19937& random) {
  const auto below = [&random](std::size_t count) { return random() % (count + 1); };
  for (auto changes = 1 + random() % 8; changes > 0; --changes) {
    const std::size_t at = below(input.size()), length = below(8);
    switch (random() % 6) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
        break;
      case 1:
        if (at < input.size()) input[at] = "\x00\x01\x7f\x80\xff,:\"[{0"[random() % 11];
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, length, static_cast<char>(random()));
        break;
      case 4:
        input.insert(at, other, below(other.size()), length);
        break;
      default:
        input.resize(at);
    }
  }
  return input;
}

class Replay {
 public:
  explicit Replay(const fs::path& program) : kept_(program.filename().string() + ".input") {}

  void run(const std::string& input) {
    std::ofstream(kept_, std::ios::binary) << input;
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
    ++runs_;
  }
  void end() {
    fs::remove(kept_);
    std::cout << runs_ << " inputs\n";
  }

 private:
  fs::path kept_;
  std::size_t runs_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  constexpr std::string_view kVariants = "--variants=";
  std::size_t variants = 0;
  std::vector<std::string> corpus;
  for (const std::string_view argument : std::span(argv, static_cast<std::size_t>(argc)).subspan(1))
    if (argument.starts_with(kVariants))
      variants = std::stoul(std::string(argument.substr(kVariants.size())));
    else
      std::ranges::move(read_all(argument), std::back_inserter(corpus));
  if (corpus.empty()) {
    std::cerr << "no inputs: name files or folders of them\n";
    return 2;
  }
  Replay replay(argv[0]);
  for (const std::string& input : corpus) replay.run(input);
  std::mt19937 random(1);
  for (std::size_t i = 0; i < variants; ++i)
    replay.run(variant(corpus[i % corpus.size()], corpus[random() % corpus.size()], random));
  replay.end();
}
