#include "compressors/sparsifiers/combinations.h"

#include <bit>
#include <memory>

namespace thinwire {
namespace {

using Number = Combinations::Number;

// a <- a + b; a <- a - b. Pre: there is no carry beyond the last word.
void add(Number& a, const Number& b) {
  std::uint64_t carry = 0;
  for (std::size_t w = 0; w < a.size(); ++w) {
    const std::uint64_t sum = a[w] + b[w];
    const bool over = sum < a[w];
    a[w] = sum + carry;
    carry = over || a[w] < carry ? 1 : 0;
  }
}
void subtract(Number& a, const Number& b) {
  std::uint64_t borrow = 0;
  for (std::size_t w = 0; w < a.size(); ++w) {
    const std::uint64_t difference = a[w] - b[w];
    const bool under = a[w] < b[w] || difference < borrow;
    a[w] = difference - borrow;
    borrow = under ? 1 : 0;
  }
}

bool is_less(const Number& a, const Number& b) {
  for (std::size_t w = a.size() - 1; w > 0; --w)
    if (a[w] != b[w]) return a[w] < b[w];
  return a[0] < b[0];
}

// (n choose k), by Pascal's rule. Those of one k lie together: find() walks through them.
class Binomials {
 public:
  Binomials() {
    for (std::size_t n = 0; n <= Combinations::kMostAll; ++n) at(n, 0) = {1};
    for (std::size_t k = 1; k <= Combinations::kMostTaken; ++k)
      for (std::size_t n = 1; n <= Combinations::kMostAll; ++n) {
        at(n, k) = at(n - 1, k);
        add(at(n, k), at(n - 1, k - 1));
      }
  }
  const Number& of(std::size_t n, std::size_t k) const { return rows_[k][n]; }

 private:
  Number& at(std::size_t n, std::size_t k) { return rows_[k][n]; }
  std::array<std::array<Number, Combinations::kMostAll + 1>, Combinations::kMostTaken + 1> rows_{};
};

const Binomials& binomials() {
  static const auto instance = std::make_unique<const Binomials>();
  return *instance;
}

}  // namespace

Combinations::Combinations(std::size_t taken, std::size_t all) : taken_(taken), all_(all) {}

unsigned Combinations::bits() const {
  const Number& count = binomials().of(all_, taken_);
  std::size_t w = count.size() - 1;
  while (w > 0 && count[w] == 0) --w;
  return static_cast<unsigned>(64 * w) + static_cast<unsigned>(std::bit_width(count[w]));
}

Combinations::Number Combinations::number_of(std::span<const std::uint16_t> combination) const {
  Number number{1};
  for (std::size_t j = 0; j < taken_; ++j) add(number, binomials().of(combination[j], j + 1));
  return number;
}

bool Combinations::find(Number number, std::span<std::uint16_t> combination) const {
  if (number == Number{} || is_less(binomials().of(all_, taken_), number)) return false;
  subtract(number, {1});
  std::size_t left = taken_;
  for (std::size_t c = all_; left > 0;) {
    const Number& before = binomials().of(--c, left);  // the combinations that have no more than these
    if (is_less(number, before)) continue;
    subtract(number, before);
    combination[--left] = static_cast<std::uint16_t>(c);
  }
  return true;
}

}  // namespace thinwire
