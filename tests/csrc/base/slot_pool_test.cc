#include "base/slot_pool.h"

#include <gtest/gtest.h>

namespace tokenspeed {
namespace {

TEST(SlotPoolTest, HandsOutTheLowestFreeSlot) {
  SlotPool pool(70);
  std::vector<SlotRef> held;
  for (int32_t i = 0; i < 70; ++i) {
    held.push_back(*pool.Acquire());
    EXPECT_EQ(held.back().value(), i);
  }
  EXPECT_FALSE(pool.Acquire().has_value());
  {
    SlotRef gone = std::move(held[66]);
  }
  {
    SlotRef gone = std::move(held[3]);
  }
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.Acquire()->value(), 3);
}

TEST(SlotPoolTest, AMovedFromRefGivesNothingBack) {
  SlotPool pool(2);
  SlotRef first = *pool.Acquire();
  SlotRef second = std::move(first);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(second.value(), 0);
}

}  // namespace
}  // namespace tokenspeed
