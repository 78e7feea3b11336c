// Spectral ATOMO: of a matrix's singular value decomposition a few atoms, drawn by their singular values: unbiased, and of all choices of
// probabilities the one of least variance.
// Source: Wang, Sievert, Liu, Charles, Papailiopoulos, Wright, "ATOMO: communication-efficient learning via atomic sparsification", NeurIPS
// 2018, algorithm 1 and section 4. Symbols: a parameter as a matrix M (m x n, its first dimension by all others), M = sum of l_i u_i v_i',
// s = `rank`, the number of atoms that are sent:
//
//   p_i = min(1, c l_i), c so that sum of p_i = s: greedily, the largest first; what cutting off at 1 spares goes to the others
//   sent: l_i / p_i u_i v_i' for those that are drawn with p_i      E|M' - M|^2 = sum of l_i^2 (1/p_i - 1)
//
// Atoms are drawn together (systematic sampling: Madow and Madow, 1944) where the paper draws each by itself: with the same probabilities, and,
// as atoms are orthogonal, the same variance, but always s of them. So codes have a fixed length. With feedback=on what is sent is times
// E/(E + V), the energy and that variance, which makes it a contraction on average.
//
// Of X, M or M', the one of fewer columns k, vectors v are eigenvectors of X'X, by LAPACK in float32, and l_i u_i = X v_i. However far those are
// from singular vectors, they are orthonormal: the sum of all atoms is M to rounding. A matrix both of whose sides are longer than 512 is cut
// into 512 rows each, with s atoms of their own. What would not become half as long, and what is no matrix, is sent as it is.
//
// A code: s rows of m floats, then s of n floats, whose products are added up; zeros for atoms that there are not. Or the values. 32 s (1/m + 1/n)
// bits an entry. Encoding takes 4 m n k flops and the eigenvectors; a code depends on the processor, what it is decoded to does not.
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "compressors/projections/low_rank.h"
#include "compressors/shared/reduce_coded.h"
#include "compressors/shared/row.h"
#include "kernels/linear_algebra.h"
#include "kernels/products.h"
#include "kernels/rounding.h"
#include "kernels/rows.h"
#include "kernels/statistics.h"
#include "thinwire/errors.h"

namespace thinwire {
namespace {

using kernels::ConstMatrix;
using kernels::Matrix;
using kernels::MatrixRoom;
using kernels::PackedMatrix;

constexpr std::uint8_t kWireId = 71, kWireVersion = 1;
constexpr std::size_t kMostColumns = 512;  // of X, as eigenvectors take k^3
constexpr double kLargest = 1e30;          // of values: atoms are sums of many

class Atomo : public Compressor, private PieceCodec {
 public:
  Atomo(std::size_t rank, bool shrinks, Reduce reduce) : rank_(rank), shrinks_(shrinks), reduce_(reduce) {}
  Exchange exchange(Work& work, Context& context) const override { return reduce_coded(*this, reduce_, work, context); }
  bool chooses_by_link() const override { return reduce_ == Reduce::kAuto; }
  bool serves_owners() const override { return true; }
  Unit unit() const override { return Unit::kSlice; }
  std::uint64_t slice_elements(const Parameter& parameter) const override {
    const LowRank whole(parameter, rank_);
    if (whole.m == 0) return 1;
    return whole.n * (whole.n > kMostColumns ? std::min(whole.m, kMostColumns) : whole.m);
  }

 private:
  std::uint8_t wire_id() const override { return kWireId; }
  std::uint8_t wire_version() const override { return kWireVersion; }
  std::size_t most_bytes(const Piece& piece) const override {
    const LowRank shape = of(piece);
    return sizeof(float) * (shape.r > 0 ? shape.r * (shape.m + shape.n) : piece.elements());
  }
  std::size_t room_bytes(const Piece& piece, std::size_t codes) const override;

  bool can_encode(const kernels::Magnitudes& magnitudes) const override { return static_cast<double>(magnitudes.largest) <= kLargest; }
  std::size_t encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                           std::span<std::byte> code, std::span<std::byte> room) const override;
  float check(std::span<const std::byte> code, const Piece& piece) const override;
  void decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
              std::span<std::byte> room) const override;

  LowRank of(const Piece& piece) const {
    const LowRank whole(*piece.definition, rank_);
    return whole.m == 0 ? whole : LowRank(piece.elements() / whole.n, whole.n, rank_);
  }

  std::size_t rank_;
  bool shrinks_;
  Reduce reduce_;
};

// Singular values and their order; of the i-th atom the probability.
struct Lengths {
  std::span<double> lengths, probabilities;
  std::span<std::uint32_t> order;  // of falling lengths
  double energy = 0, variance = 0;
};

// Algorithm 1.
void find_probabilities(Lengths& atoms, std::size_t wanted) {
  std::iota(atoms.order.begin(), atoms.order.end(), 0U);
  std::ranges::stable_sort(atoms.order, std::greater(), [&](std::uint32_t i) { return atoms.lengths[i]; });
  auto& remaining = atoms.probabilities;  // at first: the sum of what is no longer, from the smallest on
  double sum = 0;
  for (std::size_t j = atoms.order.size(); j-- > 0;) remaining[atoms.order[j]] = sum += atoms.lengths[atoms.order[j]];
  bool cut_off = true;
  double factor = 0;
  for (std::size_t j = 0; j < atoms.order.size(); ++j) {
    const std::uint32_t i = atoms.order[j];
    const double length = atoms.lengths[i], left = static_cast<double>(wanted) - static_cast<double>(j);
    if (cut_off && !(length > 0 && left > 0 && length * left >= remaining[i])) {
      cut_off = false;
      factor = remaining[i] > 0 ? std::max(left, 0.0) / remaining[i] : 0;
    }
    const double p = atoms.probabilities[i] = cut_off ? 1 : factor * length;
    atoms.energy += length * length;
    if (p > 0) atoms.variance += length * length * (1 / p - 1);
  }
}

// Calls take(i) for atoms that are drawn: where the sum of probabilities passes a random number, and each whole number beyond it.
template <class Take>
void draw(const Lengths& atoms, std::size_t wanted, double random, const Take& take) {
  double sum = 0;
  std::size_t taken = 0;
  for (const std::uint32_t i : atoms.order) {
    sum += atoms.probabilities[i];
    if (taken == wanted || !(sum > static_cast<double>(taken) + random)) continue;
    take(i);
    ++taken;
  }
}

std::size_t Atomo::room_bytes(const Piece& piece, std::size_t /*codes*/) const {
  const auto [m, n, r] = of(piece);
  if (r == 0) return 0;
  const std::size_t k = std::min(m, n);
  const std::size_t encoding = MatrixRoom::bytes_for<float>(k * k) + MatrixRoom::bytes_for<float>(m * n) + 3 * MatrixRoom::bytes_for<double>(k) +
                               std::max(kernels::eigenvector_room(k), PackedMatrix::room_for(k, k));
  return std::max(encoding, MatrixRoom::bytes_for<float>(r * (m + n)) + PackedMatrix::room_for(r, n));
}

std::size_t Atomo::encode_piece(const Piece& piece, Pass pass, std::span<float> values, const kernels::Magnitudes& magnitudes,
                                std::span<std::byte> code, std::span<std::byte> memory) const {
  const auto [m, n, r] = of(piece);
  if (r == 0) {
    std::memcpy(code.data(), values.data(), code.size());
    return code.size();
  }
  std::ranges::fill(code, std::byte{0});
  if (magnitudes.largest == 0) return code.size();
  // Squares of very small values would be lost.
  const float scale = std::ldexp(1.0f, -std::max(std::ilogb(magnitudes.largest), -126));
  kernels::multiply(values, scale);

  MatrixRoom room(memory);
  const std::size_t k = std::min(m, n), other = m + n - k;
  const ConstMatrix matrix{values.data(), m, n, n}, x = m < n ? matrix.transpose() : matrix;
  const Matrix vectors{room.take<float>(k * k).data(), k, k, k}, atoms{room.take<float>(k * other).data(), k, other, other};
  Lengths found{room.take<double>(k), room.take<double>(k), room.take<std::uint32_t>(k)};
  std::fill_n(vectors.data, k * k, 0.0f);
  kernels::add_gram(x, vectors);
  {
    std::array<float, kMostColumns> squares;
    if (!kernels::find_eigenvectors(vectors, std::span(squares).first(k), room)) {  // other atoms are as exact, if not as few
      std::fill_n(vectors.data, k * k, 0.0f);
      for (std::size_t i = 0; i < k; ++i) vectors.data[i * (k + 1)] = 1;
    }
  }
  std::fill_n(atoms.data, k * other, 0.0f);
  kernels::add_product(1, x, PackedMatrix(ConstMatrix(vectors).transpose(), room), atoms.transpose());
  for (std::size_t i = 0; i < k; ++i)
    found.lengths[i] = std::sqrt(kernels::squared_norm(std::span(atoms.data + i * other, other)));
  find_probabilities(found, r);

  std::array<std::uint32_t, 1> word;
  const RandomSequence random = pass == Pass::kFirst ? piece.random : piece.random.second();
  kernels::random_words(random.counter, random.key, word);
  const double shrinking = shrinks_ ? found.energy / (found.energy + found.variance) : 1;
  std::byte *of_m = code.data(), *of_n = of_m + r * m * sizeof(float);
  draw(found, r, static_cast<double>(word[0]) * 0x1p-32, [&](std::uint32_t i) {
    const std::span vector(vectors.data + i * k, k), atom(atoms.data + i * other, other);
    kernels::multiply(atom, static_cast<float>(shrinking / found.probabilities[i]));
    kernels::multiply(atom, 1 / scale);
    std::memcpy(of_m, (m < n ? vector : atom).data(), m * sizeof(float));
    std::memcpy(of_n, (m < n ? atom : vector).data(), n * sizeof(float));
    of_m += m * sizeof(float);
    of_n += n * sizeof(float);
  });
  return code.size();
}

float Atomo::check(std::span<const std::byte> code, const Piece& piece) const {
  const auto [m, n, r] = of(piece);
  std::array<float, 2> largest{};  // of both sides; all values are one side
  const std::size_t of_m = r * m;
  for (std::size_t i = 0; i < code.size() / sizeof(float); ++i) {
    float value;
    std::memcpy(&value, code.data() + i * sizeof value, sizeof value);
    if (!std::isfinite(value)) throw PayloadError("a matrix of atomo has an entry that is not finite, the one numbered " + std::to_string(i));
    float& most = largest[i >= of_m];
    most = std::max(most, std::abs(value));
  }
  if (r == 0) return largest[1];
  const float bound = static_cast<float>(r) * largest[0] * largest[1];
  if (!std::isfinite(bound)) throw PayloadError("a matrix of atomo has factors whose product may not be finite");
  return bound;
}

void Atomo::decode(std::span<const std::byte> code, const Piece& piece, float weight, bool add, std::span<float> values,
                   std::span<std::byte> memory) const {
  const auto [m, n, r] = of(piece);
  if (r == 0) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      float value;
      std::memcpy(&value, code.data() + i * sizeof value, sizeof value);
      values[i] = add ? values[i] + weight * value : weight * value;
    }
    return;
  }
  MatrixRoom room(memory);
  const auto factors = room.take<float>(r * (m + n));  // in a message they are aligned to nothing
  std::memcpy(factors.data(), code.data(), code.size());
  const ConstMatrix of_m{factors.data(), r, m, m}, of_n{factors.data() + r * m, r, n, n};
  const PackedMatrix packed(of_n, room);
  const Matrix decoded{values.data(), m, n, n};
  if (add) return kernels::add_product(weight, of_m.transpose(), packed, decoded);
  kernels::set_product(weight, of_m.transpose(), packed, {}, decoded);
}

}  // namespace

Row atomo_row() {
  Row row;
  row.info = {.name = "atomo",
              .family = Family::kProjections,
              .description = "spectral ATOMO: of a matrix's singular vectors a few, drawn with probabilities in proportion to their singular values, "
                             "up to 1, and divided by them; what would not become half as long, and what is no matrix, travels as it is",
              .bits = "by the rank",
              .wire_id = kWireId,
              .wire_version = kWireVersion,
              .aggregation = Aggregation::kGather,
              .unbiased = true,
              .reference = "Wang et al., NeurIPS 2018, arXiv 1806.04090"};
  row.info.sizes = {"rank"};
  row.info.parameters = {whole_number("rank", "3", 1, 64, "s, how many atoms are sent of a matrix"), feedback("off"), reduce()};
  row.make = [](const SpecValues& values, MadeCompressor) -> MadeCompressor {
    return std::make_unique<Atomo>(static_cast<std::size_t>(values.integer("rank")), values.choice("feedback") == "on",
                                   reduce_of(values.choice("reduce")));
  };
  row.claims = [](const SpecValues& values, Claims claims) {
    claims.contractive = claims.on_average = values.choice("feedback") == "on";
    claims.largest = kLargest / 100;  // which residuals and means are within, too
    claims.bits = bits_sent(32, values.choice("reduce"));
    return claims;
  };
  row.trials.further = {"rank=2,feedback=on,reduce=scatter", "rank=8"};
  return row;
}

}  // namespace thinwire
