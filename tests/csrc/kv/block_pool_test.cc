#include "kv/block_pool.h"

#include <gtest/gtest.h>

namespace tokenspeed {
namespace {

TEST(BlockPoolTest, AcquireTakesOneBlockOfEveryGroupOrNone) {
  BlockPool pool({1, 2}, 3);  // two physical blocks: one per group
  std::optional<BlockRef> first = pool.Acquire();
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(pool.Acquire().has_value()) << "group 0 has no room";
  EXPECT_EQ(pool.num_refs(), 1);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, TheLastHoldFreesTheSet) {
  BlockPool pool({1}, 2);
  BlockRef first = *pool.Acquire();
  BlockRef second = first.Share();
  first.Reset();
  EXPECT_FALSE(pool.CanAcquire());
  second.Reset();
  EXPECT_TRUE(pool.CanAcquire());
  pool.CheckInvariants();
}

TEST(BlockPoolTest, ACachedSetWaitsOnTheColdListInOrderOfRelease) {
  BlockPool pool({1}, 4);
  BlockRef first = *pool.Acquire(), second = *pool.Acquire();
  const SetId a = first.set(), b = second.set();
  pool.SetCached(a, true);
  pool.SetCached(b, true);
  second.Reset();
  first.Reset();
  EXPECT_EQ(pool.coldest(), b);
  EXPECT_EQ(pool.hotter(b), a);
  BlockRef again = pool.Hold(b);
  EXPECT_EQ(pool.coldest(), a);
  pool.SetCached(a, false);
  EXPECT_EQ(pool.coldest(), SetId(0));
  again.Reset();
  EXPECT_EQ(pool.coldest(), b);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, ATableLetsGoOfItsLastBlockFirst) {
  BlockPool pool({1}, 4);
  std::vector<SetId> sets;
  {
    BlockTable table;
    for (int i = 0; i < 3; ++i) {
      table.Append(*pool.Acquire());
      sets.push_back(table.set(i));
      pool.SetCached(sets.back(), true);
    }
  }
  EXPECT_EQ(pool.coldest(), sets[2]);
  EXPECT_EQ(pool.hotter(sets[2]), sets[1]);
  EXPECT_EQ(pool.hotter(sets[1]), sets[0]);
}

TEST(BlockPoolTest, HoldingAFreeSetIsABrokenInvariant) {
  BlockPool pool({1}, 2);
  EXPECT_THROW(pool.Hold(SetId(1)), std::logic_error);
}

}  // namespace
}  // namespace tokenspeed
