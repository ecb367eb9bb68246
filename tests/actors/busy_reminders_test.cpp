#include "actors/busy_reminders.hpp"

#include <doctest/doctest.h>

namespace troupe {

TEST_CASE("an actor reminds itself while it is busy, a few times more, and then not until it is busy again") {
  busy_reminders reminders;
  for (int round = 0; round < 2; ++round) {
    CAPTURE(round);
    CHECK(reminders.begin());
    CHECK_FALSE(reminders.begin());  // one is on its way
    CHECK(reminders.again(true, 2));
    CHECK(reminders.again(false, 2));
    CHECK_FALSE(reminders.begin());
    CHECK(reminders.again(false, 2));  // counts anew
    CHECK(reminders.again(false, 2));
    CHECK_FALSE(reminders.again(false, 2));
  }
}

TEST_CASE("an actor that wants no reminder without work gets none") {
  busy_reminders reminders;
  CHECK(reminders.begin());
  CHECK_FALSE(reminders.again(false));
  CHECK(reminders.begin());
}

}  // namespace troupe
