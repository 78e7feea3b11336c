#include "compressors/gradiveq/gradiveq_follow.h"

#include <algorithm>
#include <limits>

#include "compressors/gradiveq/blas_agreement.h"
#include "compressors/gradiveq/followed_basis.h"
#include "compressors/shared/message.h"
#include "compressors/gradiveq/staged_pieces.h"

namespace thinwire {
namespace {

FollowedBasis& basis_of(const Piece& piece) { return static_cast<FollowedBasis&>(*piece.memory); }

}  // namespace

GradiveqFollow::GradiveqFollow(const FollowOptions& options, std::unique_ptr<const Compressor> next)
    : options_(options), next_(std::move(next)) {
  refuse_memory(next_.get());
}

std::uint64_t GradiveqFollow::unit_elements(const Parameter& parameter) const { return std::max<std::uint64_t>(parameter.elements(), 1); }

std::unique_ptr<CompressorMemory> GradiveqFollow::make_memory(const Parameter& parameter) const {
  return std::make_unique<FollowedBasis>(parameter, options_);
}

Exchange GradiveqFollow::prepare(std::span<const ParameterView* const> /*parameters*/, Context& context) const {
  const auto fingerprint = context.scratch().take<std::int32_t>(2);
  write_blas_fingerprint(fingerprint);
  Await round = context.max(fingerprint);
  co_await round;
  check_blas_fingerprint(fingerprint);
}

// What is summed first: of pieces without components the values, with feedback a mark a piece, 1 if this worker used it, and of
// pieces with components Y and S. What is summed second: Z. A stage carries Y, S and Z.
class GradiveqFollow::Message {
 public:
  Message(Work& work, Context& context, bool has_stage)
      : work_(work), context_(context), has_stage_(has_stage), parts_(context.scratch().take<Part>(work.pieces.size())) {
    std::size_t values = 0, matrices = 0, coefficients = 0, rests = 0, pieces = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::size_t elements = work.pieces[i].gradient.size();
      const FollowedBasis& basis = basis_of(work.pieces[i]);
      Part& part = parts_[i] = {};
      if (!basis.rows()) {
        part.first = values;
        part.length = elements;
        values += part.length;
        continue;
      }
      part.slices = basis.slices().count(elements);
      part.matrix = matrices;
      part.first = coefficients;
      part.length = (basis.dims() + basis.probes()) * part.slices;
      part.second = rests;
      part.rest = basis.probes() * basis.slices().entries();
      matrices += part.slices * basis.slices().entries();
      coefficients += part.length;
      rests += part.rest;
      pieces += std::max(staged_pieces(part.length), staged_pieces(part.rest));
    }
    marks_ = values;
    const std::size_t apart = values + (work.feedback ? parts_.size() : 0);
    const std::span<float> all = context.scratch().take<float>(apart + coefficients);
    coefficients_ = all.subspan(apart);
    first_ = has_stage ? all.first(apart) : all;
    second_ = context.scratch().take<float>(rests);
    matrices_ = context.scratch().take<float>(matrices);
    own_first_ = context.scratch().take<float>(coefficients);
    const bool has_residuals = work.feedback || work.measured;
    own_second_ = context.scratch().take<float>(has_residuals ? rests : 0);
    if (has_stage) {
      staged_ = context.scratch().take<Piece>(pieces);
      lost_ = context.scratch().take<float>(has_residuals ? std::max(coefficients, rests) : 0);
    }
  }

  std::span<float> first() const { return first_; }
  std::span<float> second() const { return second_; }

  void project() {
    for_each_piece(work_, context_, [&](Piece& piece, std::size_t i) {
      open(piece, work_);
      if (work_.feedback) first_[marks_ + i] = piece.used ? 1 : 0;
      if (!is_compressed(i)) {
        std::ranges::copy(piece.values(), first_.begin() + static_cast<std::ptrdiff_t>(parts_[i].first));
        std::ranges::fill(piece.residual, 0.0f);
        return;
      }
      const FollowedBasis& basis = basis_of(piece);
      const kernels::Matrix x = matrix(i), all = rows(coefficients_, i);
      basis.slices().gather(piece.values(), 0, x.rows, x.data);
      const kernels::ConstMatrix directions{basis.rows(), all.rows, x.columns, x.columns};
      std::ranges::fill(numbers(all), 0.0f);
      kernels::add_product(1, x, kernels::PackedMatrix(directions.transpose()), all.transpose());
      std::ranges::copy(numbers(components_of(all, i)), rows(own_first_, i).data);
    });
    if (!context_.finite && !first_.empty()) first_[0] = std::numeric_limits<float>::quiet_NaN();
  }

  // S becomes P, the same on every worker. R itself is not needed: Z = P X - P Y' U.
  void probe() {
    for_each_piece(work_, context_, [&](Piece&, std::size_t i) {
      if (!is_compressed(i)) return;
      const kernels::Matrix all = rows(coefficients_, i), p = probes_of(all, i), own = rows(own_first_, i), y = components_of(own, i);
      const kernels::Matrix z = rest(second_, i);
      orthonormalize(p);
      std::ranges::copy(numbers(p), probes_of(own, i).data);
      const auto put_back_lost = [&] {
        if (!lost_.empty()) subtract(numbers(components_of(rows(lost_, i), i)), numbers(y));
      };
      if (work_.feedback) put_back_lost();
      std::vector<float> shares(p.rows * y.rows);
      const kernels::Matrix share{shares.data(), p.rows, y.rows, y.rows};
      kernels::set_product(1, p, kernels::PackedMatrix(matrix(i)), {}, z);
      kernels::set_product(1, p, kernels::PackedMatrix(kernels::ConstMatrix(y).transpose()), {}, share);
      kernels::add_product(-1, share, kernels::PackedMatrix(components(i)), z);
      if (!work_.feedback) put_back_lost();  // only to be measured: it must not change what is sent
      if (!own_second_.empty()) std::ranges::copy(numbers(z), rest(own_second_, i).data);
    });
  }

  // What a stage exchanges: what each worker's own loses is what was sent less, and goes back to X.
  Work stage_first() const { return stage(coefficients_, &Part::first, &Part::length, false); }
  Work stage_second() const { return stage(second_, &Part::second, &Part::rest, true); }

  void decode() const {
    const float share = 1.0f / static_cast<float>(context_.world_size());
    for_each_piece(work_, context_, [&](Piece& piece, std::size_t i) {
      if (work_.feedback && first_[marks_ + i] == 0) return skip(piece);
      piece.stage = Piece::Stage::kDone;
      FollowedBasis& basis = basis_of(piece);
      if (!is_compressed(i)) {
        std::ranges::copy(first_.subspan(parts_[i].first, parts_[i].length), piece.mean().begin());
        kernels::multiply(piece.mean(), share);
        if (piece.step == 0) basis.begin(piece.mean());
        return;
      }
      const kernels::Matrix x = matrix(i), all = rows(coefficients_, i), z = rest(second_, i);
      if (piece.has_residual()) {
        const kernels::ConstMatrix own = rows(own_first_, i);
        const kernels::Matrix own_z = rest(own_second_, i);
        if (!lost_.empty()) subtract(numbers(rest(lost_, i)), numbers(own_z));
        kernels::add_product(-1, own.transpose(), kernels::PackedMatrix(components(i), own_z), x);
        basis.slices().scatter(x.data, 0, x.rows, piece.residual);
      }
      const float of_sums = has_stage_ ? 1 : share;  // a stage leaves means
      kernels::set_product(of_sums, kernels::ConstMatrix(all).transpose(), kernels::PackedMatrix(components(i), z), {}, x);
      basis.slices().scatter(x.data, 0, x.rows, piece.mean());
      basis.follow(all, z);
    });
  }

 private:
  struct Part {
    std::size_t slices = 0;             // N; 0: values travel
    std::size_t matrix = 0;             // of X in matrices_
    std::size_t first = 0, length = 0;  // of values in first_, or of Y and S among coefficients_
    std::size_t second = 0, rest = 0;   // of Z in second_
  };

  Work stage(std::span<float> sent, std::size_t Part::* begin, std::size_t Part::* length, bool second) const {
    std::ranges::fill(lost_, 0.0f);
    Work staged;
    staged.feedback = work_.feedback;
    std::size_t pieces = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      if (!is_compressed(i)) continue;
      const std::size_t count = staged_pieces(part.*length);
      write_staged(work_.pieces[i], part.*begin, sent.subspan(part.*begin, part.*length),
                   lost_.empty() ? lost_ : lost_.subspan(part.*begin, part.*length), second ? part.length : 0,
                   staged_.subspan(pieces, count));
      pieces += count;
      staged.elements += part.*length;
    }
    staged.pieces = staged_.first(pieces);
    return staged;
  }

  static std::span<float> numbers(const kernels::Matrix& matrix) { return {matrix.data, matrix.rows * matrix.stride}; }
  static void subtract(std::span<const float> what, std::span<float> from) {
    for (std::size_t i = 0; i < from.size(); ++i) from[i] -= what[i];
  }

  bool is_compressed(std::size_t i) const { return parts_[i].slices > 0; }
  const FollowedBasis& basis(std::size_t i) const { return basis_of(work_.pieces[i]); }
  std::size_t entries(std::size_t i) const { return basis(i).slices().entries(); }

  // X, then the residual, then the mean.
  kernels::Matrix matrix(std::size_t i) const {
    return {matrices_.data() + parts_[i].matrix, parts_[i].slices, entries(i), entries(i)};
  }
  // Of Y and S: d rows, then q.
  kernels::Matrix rows(std::span<float> all, std::size_t i) const {
    return {all.data() + parts_[i].first, parts_[i].length / parts_[i].slices, parts_[i].slices, parts_[i].slices};
  }
  kernels::Matrix components_of(const kernels::Matrix& all, std::size_t i) const {
    return {all.data, basis(i).dims(), all.columns, all.stride};
  }
  kernels::Matrix probes_of(const kernels::Matrix& all, std::size_t i) const {
    return {all.data + basis(i).dims() * all.stride, basis(i).probes(), all.columns, all.stride};
  }
  // Of Z: q rows.
  kernels::Matrix rest(std::span<float> all, std::size_t i) const {
    return {all.data() + parts_[i].second, basis(i).probes(), entries(i), entries(i)};
  }
  kernels::ConstMatrix components(std::size_t i) const { return {basis(i).rows(), basis(i).dims(), entries(i), entries(i)}; }

  Work& work_;
  Context& context_;
  bool has_stage_;
  std::span<Part> parts_;
  std::size_t marks_ = 0;  // where they begin in first_
  std::span<float> first_, coefficients_, second_, matrices_, lost_;
  std::span<float> own_first_, own_second_;  // this worker's Y, less what a stage lost of it, with P after it, and its Z
  std::span<Piece> staged_;
};

Exchange GradiveqFollow::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  Message message(work, context, next_ != nullptr);
  message.project();
  if (!message.first().empty()) {
    Await first = context.sum(message.first());
    co_await first;
    if (flagged(message.first(), context)) co_return;
  }
  if (!message.second().empty() && next_) {
    Work coefficients = message.stage_first();
    Exchange first = next_->exchange(coefficients, context);
    co_await first;
    if (context.any_non_finite) co_return;
    context.enter(Phase::kEncode);  // the stage had decoded
    message.probe();
    Work rest = message.stage_second();
    Exchange second = next_->exchange(rest, context);
    co_await second;
    if (context.any_non_finite) co_return;
  } else if (!message.second().empty()) {
    message.probe();
    Await second = context.sum(message.second());
    co_await second;
    if (flagged(message.second(), context)) co_return;
  }
  context.enter(Phase::kDecode);
  message.decode();
}

}  // namespace thinwire
