// What tests of lost, late and mistaken workers have in common.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "worker_threads.h"

namespace thinwire {

inline void sum(Communicator& communicator, std::vector<float>& values) {
  communicator.perform({.kind = CollectiveKind::kSum, .type = ElementType::kFloat32, .data = bytes_of(values)});
}

inline void sum_of(Communicator& communicator, std::size_t elements) {
  std::vector<float> values(elements, 1);
  sum(communicator, values);
}

inline void expect_mentions(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

inline void expect_broken(Ends& group) {
  for (auto& end : group) EXPECT_THROW(sum_of(*end, 4), PeerError) << "worker " << end->rank();
}

}  // namespace thinwire
