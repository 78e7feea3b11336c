// PowerSGD: a parameter as a matrix M, whose mean over the workers becomes P Q' of rank r by one step of power iteration, which begins at
// last step's Q. Source: Vogels, Karimireddy, Jaggi, NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2; what is not compressed, and what Q
// begins with in each step, as in PyTorch's powerSGD_hook.
//
// Symbols: M (m x n), by worker; W workers; Q (n x r), orthonormal. Two rounds:
//   P <- sum of M Q, then made orthonormal;   own Q <- M' P, and Q <- sum of own Qs / W;   mean: P Q';   residual: M - P (own Q)'.
// The residual is what a worker's own share of the mean leaves of M: P P' M is a projection, which never grows.
//
// The first message: of each parameter P, or its values if they are not compressed, then the head's numbers. The second: Qs. All floats.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "compressors/projections/low_rank.h"
#include "compressors/shared/averaging.h"
#include "compressors/shared/row.h"
#include "core/bytes.h"
#include "kernels/products.h"
#include "kernels/rounding.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using kernels::ConstMatrix;
using kernels::Matrix;
using kernels::PackedMatrix;

struct Shape : LowRank {
  using LowRank::LowRank;
  Matrix in_m(std::span<float> p) const { return {p.data(), m, r, r}; }
  Matrix in_n(std::span<float> q) const { return {q.data(), n, r, r}; }
  std::size_t packing_bytes() const {
    return r == 0 ? 0 : std::max({PackedMatrix::room_for(n, r), PackedMatrix::room_for(m, r), PackedMatrix::room_for(r, n)});
  }
};

// Columns become orthonormal, one after another (Gram and Schmidt's way, each twice, since what is left of a column may be small). One that
// depends on those before it becomes zero. Returns whether none did. Every worker must find the same bits: no BLAS.
bool orthonormalise(const Matrix& a) {
  constexpr double kDependent = 1e-6;  // of a column's length: what rounding leaves
  const auto dot = [&](std::size_t j, std::size_t k) {
    double sum = 0;
    for (std::size_t i = 0; i < a.rows; ++i) sum += static_cast<double>(a.data[i * a.stride + j]) * static_cast<double>(a.data[i * a.stride + k]);
    return sum;
  };
  const auto scale = [&](std::size_t k, double factor) {
    for (std::size_t i = 0; i < a.rows; ++i) a.data[i * a.stride + k] = static_cast<float>(factor * static_cast<double>(a.data[i * a.stride + k]));
  };
  bool independent = true;
  for (std::size_t k = 0; k < a.columns; ++k) {
    double length = std::sqrt(dot(k, k));
    for (int pass = 0; pass < 2 && length > 0; ++pass) {
      scale(k, 1 / length);  // before squares are rounded to float, which may be too small or too large for it
      for (std::size_t j = 0; j < k; ++j) {
        const double part = dot(j, k);
        for (std::size_t i = 0; i < a.rows; ++i)
          a.data[i * a.stride + k] -= static_cast<float>(part * static_cast<double>(a.data[i * a.stride + j]));
      }
      length = std::sqrt(dot(k, k));
      if (length < kDependent) length = 0;
    }
    scale(k, length > 0 ? 1 / length : 0);
    independent = independent && length > 0;
  }
  return independent;
}

// Directions that Q has lost, or has not had yet, are drawn.
void replace_lost(const Matrix& q) {
  std::vector<std::uint32_t> words(q.rows);
  for (std::size_t k = 0; k < q.columns; ++k) {
    bool lost = true;
    for (std::size_t j = 0; j < q.rows; ++j) lost = lost && q.data[j * q.stride + k] == 0;
    if (!lost) continue;
    kernels::random_words({0, static_cast<std::uint32_t>(k), 0, 0}, {0, 0}, words);
    for (std::size_t j = 0; j < q.rows; ++j) q.data[j * q.stride + k] = static_cast<float>(static_cast<std::int32_t>(words[j])) * 0x1p-31f;
  }
  orthonormalise(q);
}

// What a step begins with.
class Directions : public CompressorMemory {
 public:
  explicit Directions(const Shape& shape) : shape_(shape), committed_(shape.n * shape.r) { replace_lost(shape_.in_n(committed_)); }

  ConstMatrix q() { return shape_.in_n(working_); }
  // For the next step. All zeros tell of no directions: the old ones stay.
  void set(std::span<const float> q) {
    if (kernels::scan(q).largest == 0) return;
    std::ranges::copy(q, working_.begin());
    if (!orthonormalise(shape_.in_n(working_))) replace_lost(shape_.in_n(working_));
  }

  void begin_step() override { working_ = committed_; }
  void commit_step() override { committed_ = working_; }
  std::vector<std::byte> save() const override {
    std::vector<std::byte> saved(1 + committed_.size() * sizeof(float));
    ByteWriter writer(saved);
    writer.write(kVersion);
    writer.write_all(std::span<const float>(committed_));
    return saved;
  }
  void load(std::span<const std::byte> saved) override {
    ByteReader reader(saved, "a saved state of powersgd");
    reader.expect_version(kVersion);
    std::vector<float> loaded(committed_.size());
    reader.read_into(std::span(loaded));
    reader.expect_end();
    if (!std::ranges::all_of(loaded, [](float entry) { return std::abs(entry) < 1.01f; }))
      throw PayloadError("a saved state of powersgd has entries of Q that are not between -1 and 1");
    committed_ = std::move(loaded);
  }

 private:
  static constexpr std::uint8_t kVersion = 1;
  Shape shape_;
  std::vector<float> committed_, working_;
};

class PowerSgd : public Compressor {
 public:
  explicit PowerSgd(std::size_t rank) : rank_(rank) {}

  Unit unit() const override { return Unit::kParameter; }
  std::unique_ptr<CompressorMemory> make_memory(const Parameter& parameter, std::uint64_t /*chunk*/) const override {
    return std::make_unique<Directions>(Shape(parameter, rank_));
  }
  Exchange exchange(Work& work, Context& context) const override;

 private:
  std::size_t rank_;
};

Exchange PowerSgd::exchange(Work& work, Context& context) const {
  if (work.elements == 0) co_return;
  Scratch& scratch = context.scratch();
  const auto shape = [&](std::size_t i) { return Shape(*work.pieces[i].definition, rank_); };
  const auto directions = [&](std::size_t i) -> Directions& { return static_cast<Directions&>(*work.pieces[i].memory); };
  const PieceParts ps(work, context, [&](std::size_t i) { return shape(i).r > 0 ? shape(i).m * shape(i).r : work.pieces[i].elements(); });
  const PieceParts qs(work, context, [&](std::size_t i) { return shape(i).n * shape(i).r; });
  const auto values = scratch.take<float>(work.elements);
  const auto values_of = [&](std::size_t i) { return values.subspan(work.pieces[i].offset, work.pieces[i].elements()); };
  const auto matrix = [&](std::size_t i) -> ConstMatrix { return {values_of(i).data(), shape(i).m, shape(i).n, shape(i).n}; };
  std::size_t packing = 0;
  for (std::size_t i = 0; i < work.pieces.size(); ++i) packing = std::max(packing, shape(i).packing_bytes());
  const auto packings = scratch.take<std::byte>(packing * context.threads().threads());
  // c <- alpha a b, or c + alpha a b
  const auto multiply = [&](float alpha, const ConstMatrix& a, const ConstMatrix& b, const Matrix& c, std::size_t thread, bool add = false) {
    kernels::MatrixRoom room(packings.subspan(thread * packing, packing));
    const PackedMatrix packed(b, room);
    if (add) return kernels::add_product(alpha, a, packed, c);
    kernels::set_product(alpha, a, packed, {}, c);
  };

  Head head(work, scratch);
  const auto message = scratch.take<float>(ps.count() + head.numbers());
  const auto all_p = message.first(ps.count()), news = message.subspan(ps.count());
  for_each_piece(work, context, [&](const Piece& piece, std::size_t i, std::size_t thread) {
    const kernels::Opened opened = read_values(piece, work, values_of(i));
    head.note(i, opened);
    if (work.measured) work.report.energies[i] = static_cast<double>(opened.sum.sum_squares);
    const auto p = ps.of(all_p, i);
    if (shape(i).r > 0)
      multiply(1, matrix(i), directions(i).q(), shape(i).in_m(p), thread);
    else
      std::ranges::copy(values_of(i), p.begin());
  });
  head.write(news, 1.0f);
  Await first = context.sum(message);
  co_await first;
  head.read<float>(news);
  if (!head.finite() || !are_within(all_p, std::numeric_limits<float>::max(), context)) {
    context.any_non_finite = true;
    co_return;
  }

  const auto own_q = scratch.take<float>(qs.count()), all_q = scratch.take<float>(qs.count());
  for_each_piece(work, context, [&](const Piece&, std::size_t i, std::size_t thread) {
    if (shape(i).r == 0) return;
    orthonormalise(shape(i).in_m(ps.of(all_p, i)));
    multiply(1, matrix(i).transpose(), shape(i).in_m(ps.of(all_p, i)), shape(i).in_n(qs.of(own_q, i)), thread);
    std::ranges::copy(qs.of(own_q, i), qs.of(all_q, i).begin());
  });
  if (qs.count() > 0) {  // of layouts, which all workers share
    Await second = context.sum(all_q);
    co_await second;
  }

  context.enter(Phase::kDecode);
  const float share = 1.0f / static_cast<float>(context.world_size());
  const auto set_mean = [&](std::size_t i, std::span<float> mean, std::size_t thread) {
    const auto p = ps.of(all_p, i), q = qs.of(all_q, i);
    if (shape(i).r == 0)
      std::ranges::transform(p, mean.begin(), [=](float sum) { return share * sum; });
    else
      multiply(share, shape(i).in_m(p), ConstMatrix(shape(i).in_n(q)).transpose(), {mean.data(), shape(i).m, shape(i).n, shape(i).n}, thread);
  };
  const std::size_t longest = longest_piece(work);
  const auto trials = scratch.take<float>(longest * context.threads().threads());
  const bool fit = all_pieces(context, work, [&](std::size_t i, std::size_t thread) {
    const kernels::Scan sums = kernels::scan(shape(i).r > 0 ? qs.of(all_q, i) : ps.of(all_p, i));
    const double bound = 1.01 * static_cast<double>(std::max<std::size_t>(shape(i).r, 1)) * static_cast<double>(sums.largest * share);
    if (sums.finite && fits(work, bound)) return true;
    const auto mean = trials.subspan(thread * longest, work.pieces[i].elements());
    set_mean(i, mean, thread);
    return sums.finite && holds_mean(work, mean);
  });
  if (!fit) {
    context.any_non_finite = true;
    co_return;
  }
  CommitPoint ready = context.commit_point(work.is_stage);
  co_await ready;
  const CommitRooms rooms(work, context);
  for_each_piece(work, context, [&](const Piece&, std::size_t i, std::size_t thread) {
    if (head.is_skipped(i)) return skip_measured(work, i);
    const CommitRoom room = rooms.read(work, i, thread);
    set_mean(i, room.mean, thread);
    if (shape(i).r == 0) return commit_lossless(work, i, room.mean);
    if (!room.left.empty())
      multiply(-1, shape(i).in_m(ps.of(all_p, i)), ConstMatrix(shape(i).in_n(qs.of(own_q, i))).transpose(),
               {room.left.data(), shape(i).m, shape(i).n, shape(i).n}, thread, true);
    directions(i).set(qs.of(all_q, i));
    commit(work, i, room);
  });
}

}  // namespace

Row powersgd_row() {
  Row row;
  row.info = {.name = "powersgd",
              .family = Family::kProjections,
              .description = "matrices of low rank: one step of power iteration, from where the last one ended; what would not become half as "
                             "long, and what is no matrix, travels as it is",
              .bits = "by the rank",
              .wire_id = 58,
              .aggregation = Aggregation::kLinear,
              .contractive = true,
              .reference = "Vogels, Karimireddy, Jaggi, NeurIPS 2019, arXiv 1905.13727"};
  row.info.sizes = {"rank"};
  row.info.learns = true;
  row.info.parameters = {whole_number("rank", "2", 1, 64, "r, of the matrices"), feedback("on")};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<PowerSgd>(static_cast<std::size_t>(values.integer("rank")));
  };
  row.claims = [](const SpecValues& /*values*/, Claims claims) {
    claims.remembers = true;
    claims.rounding = 2e-5;
    claims.largest = 1e33;  // products are sums of many
    claims.lost = 1;
    return claims;
  };
  return row;
}

}  // namespace thinwire
