#include "tool/chosen_gradient.h"

#include <cmath>

#include "thinwire/errors.h"
#include "tool/commands.h"
#include "tool/layout_json.h"
#include "tool/npy.h"

namespace thinwire::tool {

void add_choice(CLI::App& app, GradientChoice& choice) {
  app.add_option("--input", choice.input, "A gradient: float32 .npy, (n), (workers, n) or (steps, workers, n)")
      ->required()
      ->type_name("FILE");
  app.add_option("--layout", choice.layout, "The parameters, as JSON; without: one flat parameter")->type_name("FILE");
  app.add_option("--step", choice.step, "Which step; default the last")->type_name("S")->check(whole_number(0, 1'000'000'000));
  app.add_option("--worker", choice.worker, "Which worker; default 0")->type_name("W")->check(whole_number(0, 1'000'000));
}

ChosenGradient read_chosen(const GradientChoice& choice) {
  const NpyArray array = read_npy(choice.input);
  const std::size_t dimensions = array.shape.size();
  if (dimensions < 1 || dimensions > 3 || array.values.empty())
    throw Error(choice.input + ": has shape " + shape_text(array.shape) + "; (n), (workers, n) or (steps, workers, n) is needed");
  const std::uint64_t elements = array.shape.back();
  const std::uint64_t workers = dimensions > 1 ? array.shape[dimensions - 2] : 1, steps = dimensions > 2 ? array.shape[0] : 1;
  const std::uint64_t step = choice.step.value_or(steps - 1);
  if (step >= steps || choice.worker >= workers)
    throw Error(choice.input + ": has " + std::to_string(steps) + " steps of " + std::to_string(workers) +
                " workers, numbered from 0; there is no step " + std::to_string(step) + " of worker " +
                std::to_string(choice.worker));
  ChosenGradient chosen{choice.layout ? read_layout(*choice.layout, elements) : Layout::flat(elements), step + 1, {}};
  chosen.values.reserve((step + 1) * elements);
  for (std::uint64_t s = 0; s <= step; ++s) {
    const auto first = array.values.begin() + static_cast<std::ptrdiff_t>((s * workers + choice.worker) * elements);
    chosen.values.insert(chosen.values.end(), first, first + static_cast<std::ptrdiff_t>(elements));
  }
  const auto last = chosen.last();
  for (std::size_t i = 0; i < last.size(); ++i)
    if (!std::isfinite(last[i]))
      throw Error(choice.input + ": element " + std::to_string(i) + " is not finite, and nothing can be said of the others' scale");
  return chosen;
}

}  // namespace thinwire::tool
