// When an actor reminds itself: at a period while it has something to do, and a few times more, until all that has
// ended is told. One that has nothing to do is not reminded: an idle server should be idle. Decisions only; the actor
// sends what they ask for.
#pragma once

#include <cstdint>
#include <utility>

namespace troupe {

class busy_reminders {
 public:
  // There is something to do. True: a reminder is to be sent, none is on its way.
  bool begin() {
    quiet_ = 0;
    return !std::exchange(on_its_way_, true);
  }
  // A reminder has come. True: another is to be sent, since the actor is busy or has been for less than `quiet_max`
  // reminders without.
  bool again(bool busy, uint64_t quiet_max = 0) {
    quiet_ = busy ? 0 : quiet_ + 1;
    on_its_way_ = busy || quiet_ <= quiet_max;
    return on_its_way_;
  }

 private:
  uint64_t quiet_ = 0;  // reminders since the last that found something to do
  bool on_its_way_ = false;
};

}  // namespace troupe
