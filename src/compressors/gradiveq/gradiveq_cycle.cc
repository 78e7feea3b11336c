#include "compressors/gradiveq/gradiveq_cycle.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/bytes.h"
#include "core/divide.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

constexpr std::uint8_t kVersion = 4;
constexpr const char* kSaved = "a saved state of gradiveq";
// Pieces are long, so that products are of large matrices.
constexpr std::uint64_t kLongPiece = 4 * kChunkElements;

enum Contents : std::uint8_t { kHasBasis = 1, kHasMoments = 2, kHasFound = 4, kAll = 7 };

// The largest sum, over a matrix's columns, of magnitudes times the weight of their row.
template <class Weight>
double largest_column(const kernels::ConstMatrix& matrix, const Weight& weight) {
  std::vector<double> sums(matrix.columns);
  for (std::size_t i = 0; i < matrix.rows; ++i)
    for (std::size_t k = 0; k < matrix.columns; ++k) sums[k] += weight(i) * std::abs(static_cast<double>(matrix.data[i * matrix.stride + k]));
  return *std::ranges::max_element(sums);
}

void prepare(Basis& basis) {
  const std::size_t k = basis.slices.entries(), d = basis.dims;
  const kernels::ConstMatrix components{basis.components.data(), d, k, k};
  basis.rows = kernels::PackedMatrix(components);
  basis.columns = kernels::PackedMatrix(components.transpose());
  basis.offsets.assign(d, 0);
  kernels::add_product(1, {basis.mean.data(), 1, k, k}, basis.columns, {basis.offsets.data(), 1, d, d});
  basis.largest_mean = static_cast<double>(kernels::scan(basis.mean).largest);
  basis.reach = largest_column(components, [](std::size_t) { return 1.0; });
  if (!basis.code) return;
  basis.reach_of_levels = largest_column(components, [&](std::size_t c) {
    return static_cast<double>(basis.deviations[c]) * static_cast<double>(basis.code->steps()[c]) * std::ldexp(1.0, basis.code->widths()[c]);
  });
}

// False if it leaves float's range.
bool scale_back(Basis& basis, float scale) {
  kernels::multiply(basis.mean, 1 / scale);
  kernels::multiply(basis.deviations, 1 / scale);
  return kernels::scan(basis.mean).finite && kernels::scan(basis.deviations).finite;
}

struct BasisHeader {
  std::uint32_t axis;
  std::uint32_t dims;
  std::uint32_t entries;
  std::uint32_t by_channel;
};

std::size_t saved_bytes(const Basis& basis) { return sizeof(BasisHeader) + 4 * GradiveqCycle::basis_numbers(basis); }

void save_basis(const Basis& basis, ByteWriter& writer) {
  writer.write(BasisHeader{static_cast<std::uint32_t>(basis.axis), static_cast<std::uint32_t>(basis.dims),
                           static_cast<std::uint32_t>(basis.slices.entries()), basis.by_channel ? 1U : 0U});
  std::vector<float> numbers(GradiveqCycle::basis_numbers(basis));
  GradiveqCycle::write_basis(basis, numbers);
  writer.write_all(std::span<const float>(numbers));
}

}  // namespace

std::uint64_t piece_elements(const Parameter& parameter, const GradiveqOptions& options) {
  std::uint64_t channel = 1;
  for (const Axis axis : axes_for(parameter, options.axis))
    channel = std::lcm(channel, static_cast<std::uint64_t>(Slices(parameter, axis, options.slice).channel()));
  return std::max<std::uint64_t>(kLongPiece / channel, 1) * channel;
}

GradiveqCycle::GradiveqCycle(const Parameter& parameter, const GradiveqOptions& options, const Compressor* stage, Background& background)
    : CarryingMemory(nullptr), parameter_(parameter), options_(options), stage_(stage), background_(background),
      piece_elements_(piece_elements(parameter, options)), piece_coefficients_(most_coefficients_of_piece()) {
  carriers_ = make_carriers();
}

// In whole chunks, whatever cut is taken, with all its components.
std::uint64_t GradiveqCycle::most_coefficients_of_piece() const {
  const auto elements = static_cast<std::size_t>(std::min(piece_elements_, parameter_.elements()));
  std::size_t most = 0;
  for (const Axis axis : axes_for(parameter_, options_.axis)) most = std::max(most, slices(axis).count(elements) * slices(axis).entries());
  return divided_up(most, kChunkElements) * kChunkElements;
}

std::uint64_t GradiveqCycle::first_coefficient(const Piece& piece) const {
  return piece.first / piece_elements_ * piece_coefficients_;
}

std::unique_ptr<CompressorMemory> GradiveqCycle::make_carriers() const {
  if (!stage_ || is_small()) return nullptr;
  const std::uint64_t pieces = divided_up(parameter_.elements(), piece_elements_);
  return stage_->make_memory({parameter_.name, {static_cast<std::int64_t>(pieces * piece_coefficients_)}}, kChunkElements);
}

const Basis* GradiveqCycle::basis(std::uint64_t step, int world_size) {
  if (!options_.schedule.uses(step) || !working_) return nullptr;
  const std::size_t usable = working_->code ? working_->code->components_with_levels(world_size) : working_->dims;
  if (usable == working_->dims) return working_.get();
  if (shortened_.of != working_ || shortened_.world_size != world_size) shortened_ = {working_, first_components(*working_, usable), world_size};
  return shortened_.basis.get();
}

void GradiveqCycle::begin_learning(std::uint64_t step, bool is_owner, int world_size) {
  if (is_small()) return;
  const bool begins = options_.schedule.position(step) == 0;
  forgets_ = begins;
  if (begins) forget_carriers();
  if (!is_owner && (begins || !is_learning())) return;
  options_.size.world_size = world_size;
  seen_step_ = step;
  seen_.resize(parameter_.elements());
}

void GradiveqCycle::learn(std::uint64_t first, std::span<const float> mean) {
  if (seen_step_) std::ranges::copy(mean, seen_.begin() + static_cast<std::ptrdiff_t>(first));
}

const Basis* GradiveqCycle::found() {
  if (!learned_ || !learned_->done.valid()) return nullptr;
  learned_->done.get();
  return learned_->basis ? &*learned_->basis : nullptr;
}

void GradiveqCycle::use(std::shared_ptr<const Basis> basis) {
  working_ = std::move(basis);
  forgets_ = true;
  forget_carriers();
}

void GradiveqCycle::forget_carriers() {
  if (!carriers_ || fresh_) return;
  fresh_ = make_carriers();
  fresh_->begin_step();
}

std::size_t GradiveqCycle::basis_numbers(const Basis& basis) {
  return numbers(basis.dims, basis.slices.entries(), basis.code.has_value());
}

void GradiveqCycle::write_basis(const Basis& basis, std::span<float> numbers) {
  auto to = numbers.begin();
  for (const std::vector<float>* part : {&basis.components, &basis.mean, &basis.deviations}) to = std::ranges::copy(*part, to).out;
  if (!basis.code) return;
  to = std::ranges::transform(basis.code->widths(), to, [](int width) { return static_cast<float>(width); }).out;
  std::ranges::copy(basis.code->steps(), to);
}

// Numbers are finite.
void GradiveqCycle::read_code(Basis& basis, std::span<const float> numbers) const {
  std::vector<int> widths;
  for (const float width : numbers.first(basis.dims)) {
    if (!(width >= 1) || width > kWidestField || width != std::floor(width) || (!widths.empty() && width > static_cast<float>(widths.back())))
      throw PayloadError("a basis of gradiveq for parameter '" + parameter_.name + "' gives a component impossible bits");
    widths.push_back(static_cast<int>(width));
  }
  std::vector<float> steps(numbers.begin() + static_cast<std::ptrdiff_t>(basis.dims), numbers.end());
  const auto is_step = [](float step) { return step > 0 && step <= 8; };
  if (!std::ranges::all_of(steps, is_step) || !std::ranges::all_of(basis.deviations, [](float deviation) { return deviation >= 0; }))
    throw PayloadError("a basis of gradiveq for parameter '" + parameter_.name + "' gives a component an impossible step");
  const auto elements = static_cast<std::size_t>(parameter_.elements());
  basis.code.emplace(std::move(widths), std::move(steps), TransformCode::group_of(basis.slices.count(elements), elements));
}

std::shared_ptr<const Basis> GradiveqCycle::read_basis(const BasisKind& kind, std::span<const float> numbers) const {
  auto basis = std::make_shared<Basis>();
  static_cast<BasisKind&>(*basis) = kind;
  basis->slices = slices(kind.axis);
  const std::size_t dims = kind.dims, k = basis->slices.entries();
  if (dims == 0 || dims > k || numbers.size() != basis_numbers(dims, k))
    throw PayloadError("a basis of gradiveq for parameter '" + parameter_.name + "' has " + std::to_string(dims) +
                       " components of " + std::to_string(numbers.size()) + " numbers; its slices have " + std::to_string(k) + " entries");
  constexpr float kLargestEntry = 1.01f;  // of rows of length one, to rounding
  if (!kernels::scan(numbers).finite || kernels::scan(numbers.first(dims * k)).largest > kLargestEntry)
    throw PayloadError("a basis of gradiveq for parameter '" + parameter_.name + "' holds a number that is not finite, or too large");
  basis->components.assign(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(dims * k));
  numbers = numbers.subspan(dims * k);
  basis->mean.assign(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(k));
  numbers = numbers.subspan(k);
  basis->deviations.assign(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(dims));
  if (options_.size.rate > 0) read_code(*basis, numbers.subspan(dims));
  prepare(*basis);
  return basis;
}

std::shared_ptr<const Basis> GradiveqCycle::first_components(const Basis& basis, std::size_t count) const {
  if (count == 0) return nullptr;
  std::vector<float> all(basis_numbers(basis)), first;
  write_basis(basis, all);
  std::span<const float> rest(all);
  const std::size_t k = basis.slices.entries(), d = basis.dims;
  // Components, mean, deviations, widths and steps.
  for (const auto& [length, wanted] : {std::pair{d * k, count * k}, {k, k}, {d, count}, {d, count}, {d, count}}) {
    first.insert(first.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(wanted));
    rest = rest.subspan(length);
  }
  return read_basis({basis.axis, count, basis.by_channel}, first);
}

void GradiveqCycle::begin_step() {
  CarryingMemory::begin_step();
  working_ = committed_;
  seen_step_.reset();
  forgets_ = false;
  fresh_ = nullptr;
}

void GradiveqCycle::commit_step() {
  if (fresh_) carriers_ = std::move(fresh_);
  CarryingMemory::commit_step();
  committed_ = working_;
  if (std::exchange(forgets_, false)) learned_ = nullptr;
  if (!seen_step_) return;
  add_seen();
  if (options_.schedule.position(*seen_step_) + 1 == options_.schedule.learn) {
    find_in_background();
    seen_ = {};
  }
  seen_step_.reset();
}

std::shared_ptr<GradiveqCycle::Learned> GradiveqCycle::fresh() const {
  auto learned = std::make_shared<Learned>();
  for (const Axis axis : axes_for(parameter_, options_.axis)) learned->moments.emplace_back(parameter_, axis, options_.slice);
  return learned;
}

// The scale is a cycle's first gradient's. Later ones that are so much larger that their squares overflow spoil the moments,
// and the parameter stays uncompressed for this cycle.
void GradiveqCycle::add_seen() {
  if (!is_learning()) learned_ = fresh();
  ++learned_->steps;
  const kernels::Magnitudes magnitudes = kernels::measure(seen_);
  if (!magnitudes.finite || magnitudes.largest == 0) return;
  if (learned_->scale == 0) learned_->scale = std::ldexp(1.0f, -std::clamp(std::ilogb(magnitudes.largest), -120, 120));
  kernels::multiply(seen_, learned_->scale);
  for (Moments& moments : learned_->moments) moments.add(seen_);
}

void GradiveqCycle::find_in_background() {
  learned_->done = background_.submit([wanted = std::weak_ptr<Learned>(learned_), size = options_.size] {
    const std::shared_ptr<Learned> learned = wanted.lock();
    if (!learned) return;
    learned->basis = best_basis(learned->moments, size);
    learned->moments.clear();
    if (learned->basis && !scale_back(*learned->basis, learned->scale)) learned->basis.reset();
  });
}

std::vector<std::byte> GradiveqCycle::save() const {
  const bool finding = learned_ && learned_->done.valid();
  if (finding) learned_->done.wait();
  const Basis* const found = finding && learned_->basis ? &*learned_->basis : nullptr;
  const bool learning = is_learning();
  const std::vector<std::byte> carriers = save_carriers();
  std::size_t bytes = 2 + carriers.size() + (committed_ ? saved_bytes(*committed_) : 0) + (found ? sizeof(std::uint32_t) + saved_bytes(*found) : 0);
  if (learning) {
    bytes += sizeof(std::uint32_t) + sizeof(float);
    for (const Moments& moments : learned_->moments) bytes += moments.saved_bytes();
  }
  std::vector<std::byte> saved(bytes);
  ByteWriter writer(saved);
  writer.write(kVersion);
  writer.write(static_cast<std::uint8_t>((committed_ ? kHasBasis : 0) | (learning ? kHasMoments : 0) | (found ? kHasFound : 0)));
  if (committed_) save_basis(*committed_, writer);
  if (learning) {
    writer.write(learned_->steps);
    writer.write(learned_->scale);
    for (const Moments& moments : learned_->moments) moments.save(writer);
  }
  if (found) {
    writer.write(learned_->steps);
    save_basis(*found, writer);
  }
  writer.write_all(std::span<const std::byte>(carriers));
  return saved;
}

void GradiveqCycle::load(std::span<const std::byte> saved) {
  ByteReader reader(saved, kSaved);
  reader.expect_version(kVersion);
  const auto contents = reader.read<std::uint8_t>();
  if (contents > kAll || (contents & kHasMoments && contents & kHasFound))
    throw PayloadError(std::string(kSaved) + " says that it holds " + std::to_string(contents) + ", which is nothing known");
  const auto load_basis = [&] {
    const auto header = reader.read<BasisHeader>();
    if (header.axis >= kAxes || header.dims > parameter_.elements() || header.by_channel > 1)
      throw PayloadError(std::string(kSaved) + " holds a basis of an unknown kind");
    const auto axis = static_cast<Axis>(header.axis);
    if (header.entries != slices(axis).entries())
      throw PayloadError(std::string(kSaved) + " holds a basis for slices of " + std::to_string(header.entries) + " entries; they have " +
                         std::to_string(slices(axis).entries()) + " now. A parameter whose shape has changed begins anew");
    const std::size_t count = basis_numbers(header.dims, slices(axis).entries());
    const auto bytes = reader.take(count * sizeof(float));
    std::vector<float> numbers(count);
    ByteReader(bytes, kSaved).read_into(std::span(numbers));
    return read_basis({axis, header.dims, header.by_channel == 1}, numbers);
  };
  std::shared_ptr<const Basis> basis;
  std::shared_ptr<Learned> learned;
  if (contents & kHasBasis) basis = load_basis();
  if (contents & kHasMoments) {
    learned = fresh();
    learned->steps = reader.read<std::uint32_t>();
    learned->scale = reader.read<float>();
    if (learned->scale != 0 && !(learned->scale >= 0x1p-120f && learned->scale <= 0x1p120f))
      throw PayloadError(std::string(kSaved) + " holds an impossible scale");
    for (Moments& moments : learned->moments) moments.load(reader);
  }
  if (contents & kHasFound) {
    learned = std::make_shared<Learned>();
    learned->steps = reader.read<std::uint32_t>();
    learned->basis = *load_basis();
    std::promise<void> done;
    done.set_value();
    learned->done = done.get_future().share();
  }
  load_carriers(reader);
  committed_ = std::move(basis);
  learned_ = std::move(learned);
}

}  // namespace thinwire
