#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "thinwire/errors.h"

namespace thinwire::tool {

// Expects `action` to throw Error with a message that holds every one of `parts`.
template <class Action>
void expect_refused(Action action, std::initializer_list<std::string> parts) {
  try {
    action();
    ADD_FAILURE() << "accepted, without " << *parts.begin();
  } catch (const Error& error) {
    for (const std::string& part : parts) EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

}  // namespace thinwire::tool
