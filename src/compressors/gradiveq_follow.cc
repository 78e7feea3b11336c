#include "compressors/gradiveq_follow.h"

#include <algorithm>
#include <limits>

#include "compressors/blas_agreement.h"
#include "compressors/followed_basis.h"
#include "compressors/message.h"

namespace thinwire {
namespace {

FollowedBasis& basis_of(const Piece& piece) { return static_cast<FollowedBasis&>(*piece.memory); }

kernels::ConstMatrix as_constant(const kernels::Matrix& matrix) { return {matrix.data, matrix.rows, matrix.columns, matrix.stride}; }

}  // namespace

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

// What is summed first: of each piece the values, or Y and S; with feedback a mark a piece, 1 if this worker used it. What is
// summed second: Z.
class GradiveqFollow::Message {
 public:
  Message(Work& work, Context& context)
      : work_(work), context_(context), parts_(context.scratch().take<Part>(work.pieces.size())) {
    std::size_t first = 0, second = 0, vectors = 0, room = 0, longest = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::size_t elements = work.pieces[i].gradient.size();
      const FollowedBasis& basis = basis_of(work.pieces[i]);
      Part& part = parts_[i] = {.first = first, .length = elements, .second = second, .vectors = vectors};
      if (basis.rows()) {
        part.rows = basis.dims() + basis.probes();
        part.slices = basis.slices().count(elements);
        part.length = part.rows * part.slices;
        second += basis.probes() * basis.slices().entries();
        vectors += part.rows * basis.slices().entries();
        room = std::max(room, basis.slices().room_for() + basis.slices().entries());
        longest = std::max(longest, elements);
      }
      first += part.length;
    }
    marks_ = first;
    first_ = context.scratch().take<float>(first + (work.feedback ? parts_.size() : 0));
    second_ = context.scratch().take<float>(second);
    vectors_ = context.scratch().take<float>(vectors);
    room_size_ = room;
    room_ = context.scratch().take<float>(room * context.threads().threads());
    longest_ = longest;
    decoded_ = context.scratch().take<float>(longest * context.threads().threads());
  }

  std::span<float> first() const { return first_; }
  std::span<float> second() const { return second_; }

  // Afterwards a piece's values are R, where it has components.
  void project() {
    for_each([&](Piece& piece, std::size_t i, std::span<float> room, std::span<float> decoded) {
      open(piece, work_);
      if (work_.feedback) first_[marks_ + i] = piece.used ? 1 : 0;
      const std::span<float> sent = first_.subspan(parts_[i].first, parts_[i].length);
      if (!parts_[i].rows) {
        std::ranges::copy(piece.values(), sent.begin());
        std::ranges::fill(piece.residual, 0.0f);
        return;
      }
      const FollowedBasis& basis = basis_of(piece);
      const std::size_t k = basis.slices().entries();
      const kernels::Matrix y = coefficients(i);
      basis.slices().project(piece.values(), {basis.rows(), parts_[i].rows, k, k}, 0, y, room);
      subtract(piece, {basis.rows(), basis.dims(), k, k}, {y.data, basis.dims(), y.columns, y.stride}, room, decoded);
    });
    if (!context_.finite && !first_.empty()) first_[0] = std::numeric_limits<float>::quiet_NaN();
  }

  // S becomes P, the same on every worker. Afterwards a piece's residual is what remains.
  void probe() {
    for_each([&](Piece& piece, std::size_t i, std::span<float> room, std::span<float> decoded) {
      if (!parts_[i].rows) return;
      const FollowedBasis& basis = basis_of(piece);
      const kernels::Matrix p = probes(i);
      orthonormalize(p);
      const kernels::Matrix z = in_second(second_, i);
      basis.slices().combine(piece.values(), as_constant(p), z, room);
      if (piece.has_residual()) subtract(piece, as_constant(z), as_constant(p), room, decoded);
    });
  }

  void decode() const {
    const float share = 1.0f / static_cast<float>(context_.world_size());
    for_each([&](Piece& piece, std::size_t i, std::span<float> room, std::span<float>) {
      if (work_.feedback && first_[marks_ + i] == 0) return skip(piece);
      piece.stage = Piece::Stage::kDone;
      FollowedBasis& basis = basis_of(piece);
      if (!parts_[i].rows) {
        std::ranges::copy(first_.subspan(parts_[i].first, parts_[i].length), piece.mean().begin());
        kernels::multiply(piece.mean(), share);
        if (piece.step == 0) basis.begin(piece.mean());
        return;
      }
      const std::size_t k = basis.slices().entries();
      const kernels::Matrix rows{vectors_.data() + parts_[i].vectors, parts_[i].rows, k, k}, z = in_second(second_, i);
      std::copy_n(basis.rows(), basis.dims() * k, rows.data);
      std::copy_n(z.data, z.rows * k, rows.data + basis.dims() * k);
      // Sums of Y, and P, which is no sum: Z is.
      const kernels::Matrix y = coefficients(i);
      basis.slices().reconstruct(share, as_constant(rows), as_constant(y), zeros(room, k), piece.mean(), room.subspan(k));
      basis.follow(as_constant(y), as_constant(z));
    });
  }

 private:
  struct Part {
    std::size_t first = 0, length = 0;  // in first_
    std::size_t second = 0;
    std::size_t vectors = 0;
    std::size_t rows = 0;  // components and probes; 0: values travel
    std::size_t slices = 0;
  };

  template <class Body>
  void for_each(const Body& body) const {
    context_.threads().for_each(work_.pieces.size(), work_.elements, [&](std::size_t i, std::size_t thread) {
      body(work_.pieces[i], i, room_.subspan(thread * room_size_, room_size_), decoded_.subspan(thread * longest_, longest_));
    });
  }

  kernels::Matrix coefficients(std::size_t i) const {
    const Part& part = parts_[i];
    return {first_.data() + part.first, part.rows, part.slices, part.slices};
  }
  kernels::Matrix probes(std::size_t i) const {
    const std::size_t dims = basis_of(work_.pieces[i]).dims(), slices = parts_[i].slices;
    return {first_.data() + parts_[i].first + dims * slices, parts_[i].rows - dims, slices, slices};
  }
  kernels::Matrix in_second(std::span<float> second, std::size_t i) const {
    const FollowedBasis& basis = basis_of(work_.pieces[i]);
    const std::size_t k = basis.slices().entries();
    return {second.data() + parts_[i].second, basis.probes(), k, k};
  }
  static std::span<const float> zeros(std::span<float> room, std::size_t k) {
    std::ranges::fill(room.first(k), 0.0f);
    return room.first(k);
  }

  // values <- values - a'y
  static void subtract(Piece& piece, const kernels::ConstMatrix& a, const kernels::ConstMatrix& y, std::span<float> room,
                       std::span<float> decoded) {
    const auto part = decoded.first(piece.gradient.size());
    const std::size_t k = a.columns;
    basis_of(piece).slices().reconstruct(1, a, y, zeros(room, k), part, room.subspan(k));
    for (std::size_t e = 0; e < part.size(); ++e) piece.values()[e] -= part[e];
  }

  Work& work_;
  Context& context_;
  std::span<Part> parts_;
  std::size_t marks_ = 0;
  std::span<float> first_, second_, vectors_, room_, decoded_;
  std::size_t room_size_ = 0, longest_ = 0;
};

Exchange GradiveqFollow::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  Message message(work, context);
  message.project();
  Await first = context.sum(message.first());
  co_await first;
  if (flagged(message.first(), context)) co_return;
  if (!message.second().empty()) {
    message.probe();
    Await second = context.sum(message.second());
    co_await second;
    if (flagged(message.second(), context)) co_return;
  }
  context.enter(Phase::kDecode);
  message.decode();
}

}  // namespace thinwire
