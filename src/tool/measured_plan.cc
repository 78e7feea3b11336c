#include "tool/measured_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "thinwire/errors.h"
#include "tool/measured_rows.h"
#include "tool/sending_cost.h"
#include "tool/text_file.h"

namespace thinwire::tool {
namespace {

using Json = nlohmann::ordered_json;

MeasuredRows rows_of(const std::string& path, const PlanOptions& given) {
  const std::string refusal = path + ": is neither what bench.network writes, a JSON object with settings and rows, nor what ./run does, with settings, network and runs, "
                                     "nor what bench.scale does, with command and rows";
  const Json file = Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || file.contains("rows") == file.contains("runs")) throw Error(refusal);
  try {
    if (file.contains("runs")) return rows_of_training(file, given);
    if (file.contains("settings")) return rows_of_network(file, given);
    if (file.contains("command")) return rows_of_simulation(file, given);
    throw Error(refusal);
  } catch (const Json::exception& error) {
    throw Error(refusal + ": " + error.what());
  }
}

std::vector<double> magnitudes(const std::vector<ComparedRow>& rows) {
  std::vector<double> off;
  for (const ComparedRow& row : rows) off.push_back(std::abs(row.off()));
  std::ranges::sort(off);
  return off;
}

}  // namespace

double Compared::median_off() const {
  const std::vector<double> off = magnitudes(rows);
  return off.empty() ? 0 : 0.5 * (off[off.size() / 2] + off[(off.size() - 1) / 2]);
}

double Compared::worst_off() const { return rows.empty() ? 0 : magnitudes(rows).back(); }

Compared compare_with_measured(const std::string& path, PlanOptions given, const std::function<void(const std::string& spec)>& predicting) {
  if (!given.cores) given.cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  MeasuredRows measured = rows_of(path, given);
  Compared compared;
  compared.cores = measured.rows.empty() ? given.cores : measured.rows.front().plan.cores;
  compared.left_out = measured.left_out;
  std::optional<double> measured_here;
  for (MeasuredRow& row : measured.rows) {
    if (given.sending_seconds) row.sending_seconds = given.sending_seconds;
    if (!row.sending_seconds && !measured_here) measured_here = measure_sending();
    row.plan.sending_seconds = row.sending_seconds ? row.sending_seconds : measured_here;
    const std::string spec = row.plan.specs.empty() ? kPlainSpec : row.plan.named(row.plan.specs.front());
    predicting(spec);
    const Plan plan = make_plan(row.plan, [](const std::string&) {});
    const auto found = std::ranges::find(plan.rows, spec, &PlanRow::spec);
    compared.rows.push_back({row.link, row.path, row.spec, plan.elements, row.seconds, found->time.seconds, plan.sending_seconds});
  }
  return compared;
}

}  // namespace thinwire::tool
