#include "kv/physical_pool.h"

#include <gtest/gtest.h>

#include <random>

namespace tokenspeed {
namespace {

constexpr GroupId kA{0}, kB{1};

TEST(PhysicalPoolTest, PacksLogicalBlocksOfOneGroup) {
  PhysicalPool pool({3, 1}, 4);
  EXPECT_EQ(pool.Acquire(kA), BlockId(3));  // physical 1, index 0
  EXPECT_EQ(pool.Acquire(kA), BlockId(4));
  EXPECT_EQ(pool.Acquire(kB), BlockId(2));
  EXPECT_EQ(pool.Acquire(kA), BlockId(5));
  EXPECT_EQ(pool.Acquire(kA), BlockId(9));  // physical 3
  EXPECT_EQ(pool.num_free(), 0);
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, AnEmptyPhysicalBlockReturnsToAnyGroup) {
  PhysicalPool pool({2, 1}, 2);
  const BlockId block = pool.Acquire(kA);
  EXPECT_FALSE(pool.CanAcquireOneEach());
  pool.Unpin(kA, block);
  pool.Release(kA, block);
  EXPECT_EQ(pool.Acquire(kB), BlockId(1));
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, CanHoldCountsRoomBesidePinnedBlocks) {
  PhysicalPool pool({4}, 3);
  EXPECT_TRUE(pool.CanHold(8));
  EXPECT_FALSE(pool.CanHold(9));
  const BlockId first = pool.Acquire(kA);
  EXPECT_TRUE(pool.CanHold(7));
  EXPECT_FALSE(pool.CanHold(8));
  pool.Unpin(kA, first);  // cached: counts as room
  EXPECT_TRUE(pool.CanHold(8));
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, FullPackingOf64Works) {
  PhysicalPool pool({64}, 2);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(pool.Acquire(kA), BlockId(64 + i));
  EXPECT_FALSE(pool.CanAcquireOneEach());
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, RandomOperationsKeepTheCounts) {
  std::mt19937 random(3);
  PhysicalPool pool({3, 2, 1}, 12);
  std::vector<std::pair<GroupId, BlockId>> pinned, unpinned;
  for (int i = 0; i < 3000; ++i) {
    const auto choice = random() % 3;
    if (choice == 0 && pool.CanAcquireOneEach()) {
      const GroupId group(static_cast<int32_t>(random() % 3));
      pinned.emplace_back(group, pool.Acquire(group));
    } else if (choice == 1 && !pinned.empty()) {
      std::swap(pinned[random() % pinned.size()], pinned.back());
      pool.Unpin(pinned.back().first, pinned.back().second);
      unpinned.push_back(pinned.back());
      pinned.pop_back();
    } else if (choice == 2 && !unpinned.empty()) {
      std::swap(unpinned[random() % unpinned.size()], unpinned.back());
      pool.Release(unpinned.back().first, unpinned.back().second);
      unpinned.pop_back();
    }
    pool.CheckInvariants();
  }
}

}  // namespace
}  // namespace tokenspeed
