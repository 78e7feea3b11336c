// The static tables of casq:rate='s coder: how often each byte is expected. They follow from the constants here by whole-number
// arithmetic, so they are the same on every machine; nothing is trained and no table is sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "compressors/shared/coding_table.h"

namespace thinwire::casq {

// Probabilities of a one, of 2^16, of independent bits that are coded eight to a byte.
constexpr std::array<std::uint32_t, 13> kBitProbabilities = {655,   1278,  2097,  2818,  5833,  11796, 19988,
                                                             25559, 28836, 32768, 34734, 36700, 39322};

// What all blocks of a density class have in common: the least count of levels that are not zero. Class 0 has none; class 1 one, whose
// place is coded.
constexpr std::array<std::uint8_t, 13> kDensityFrom = {0, 1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 122};
constexpr std::size_t kDensities = kDensityFrom.size();
// The table, in kBitProbabilities, of the plane that says which levels are not zero; inverted where most are not.
struct DensityCoding {
  std::uint8_t table;
  bool inverted;
};
constexpr std::array<DensityCoding, kDensities> kDensityCodings = {
    {{0, false}, {0, false}, {1, false}, {3, false}, {4, false}, {5, false}, {6, false}, {8, false}, {8, true}, {6, true}, {5, true}, {4, true}, {2, true}}};
// Tables of a block's first unary plane, and of the others, by magnitude; the last one's are those of all above too.
struct UnaryCoding {
  std::uint8_t first, others;
};
constexpr std::array<UnaryCoding, 11> kUnaryCodings = {
    {{0, 0}, {1, 0}, {3, 1}, {4, 2}, {5, 4}, {6, 5}, {8, 7}, {12, 12}, {11, 11}, {10, 10}, {9, 9}}};

// How classes follow one another: tables of which each chunk chooses, and says which. A class is coded as its distance from that of the
// last block that was not all zero: 0, -1, 1, -2, 2, ...; before those, for densities, stands the block that is.
constexpr std::array<std::uint32_t, 4> kZeroAfterZero = {1800, 2900, 3600, 3960}, kZeroAfterOthers = {10, 100, 350, 1100};  // of 4096
constexpr std::array<std::uint32_t, 4> kDecayAfterZero = {12, 26, 40, 52}, kDecayAfterOthers = {5, 13, 26, 42};              // of 64
constexpr std::array<std::uint32_t, 8> kMagnitudeDecay = {1, 3, 6, 11, 18, 26, 36, 48};                                      // of 64
constexpr std::size_t kDensityTables = 16, kMagnitudeTables = 8;

struct CodingTables {
  std::array<CodingTable, kBitProbabilities.size()> bits;
  CodingTable place;   // of 128
  std::array<std::array<CodingTable, kDensityTables>, 2> density;  // after a block that is all zero, after another
  std::array<CodingTable, kMagnitudeTables> magnitude;
};
// Made when it is first asked for.
const CodingTables& coding_tables();

}  // namespace thinwire::casq
