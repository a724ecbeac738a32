#include "kv/physical_pool.h"

#include <gtest/gtest.h>

#include <random>

namespace tokenspeed {
namespace {

constexpr GroupId kA{0}, kB{1};

bool CanHold(const PhysicalPool& pool, int64_t need) { return pool.CanHold({{need}}); }

TEST(PhysicalPoolTest, PacksLogicalBlocksOfOneGroup) {
  PhysicalPool pool({3, 1}, 4);
  EXPECT_EQ(pool.Acquire(kA, 1), BlockId(3));  // physical 1, index 0
  EXPECT_EQ(pool.Acquire(kA, 1), BlockId(4));
  EXPECT_EQ(pool.Acquire(kB, 1), BlockId(2));
  EXPECT_EQ(pool.Acquire(kA, 1), BlockId(5));
  EXPECT_EQ(pool.Acquire(kA, 1), BlockId(9));  // physical 3
  EXPECT_EQ(pool.num_free(), 0);
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, AnEmptyPhysicalBlockReturnsToAnyGroup) {
  PhysicalPool pool({2, 1}, 2);
  const BlockId block = pool.Acquire(kA, 1);
  EXPECT_FALSE(pool.CanAcquire(kB));
  pool.Unpin(kA, block);
  pool.Release(kA, block);
  EXPECT_EQ(pool.Acquire(kB, 1), BlockId(1));
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, CanHoldCountsRoomBesidePinnedBlocks) {
  PhysicalPool pool({4}, 3);
  EXPECT_TRUE(CanHold(pool, 8));
  EXPECT_FALSE(CanHold(pool, 9));
  const BlockId first = pool.Acquire(kA, 1);
  EXPECT_TRUE(CanHold(pool, 7));
  EXPECT_FALSE(CanHold(pool, 8));
  pool.Unpin(kA, first);  // cached: counts as room
  EXPECT_TRUE(CanHold(pool, 8));
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, NeedsOfSeveralGroupsAddUp) {
  PhysicalPool pool({4, 1}, 5);
  const int64_t fits[] = {8, 2}, too_many[] = {9, 2};
  EXPECT_TRUE(pool.CanHold(fits));
  EXPECT_FALSE(pool.CanHold(too_many));
}

TEST(PhysicalPoolTest, TheNextBlockLiesBesideThePreviousOne) {
  PhysicalPool pool({2}, 9);
  const BlockId a = pool.Acquire(kA, 1), b = pool.Acquire(kA, 1);
  const BlockId c = pool.Acquire(kA, 2), other = pool.Acquire(kA, 3);
  pool.Unpin(kA, a);
  pool.Release(kA, a);
  pool.Unpin(kA, c);
  pool.Release(kA, c);
  EXPECT_EQ(pool.Acquire(kA, 3, other), c);
  EXPECT_EQ(pool.Acquire(kA, 1, b), a);
}

TEST(PhysicalPoolTest, LeastResidentCountsWhatLivesInUnpinnedBlocks) {
  PhysicalPool pool({3, 1}, 4);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.Acquire(kA, 1));
  EXPECT_EQ(pool.LeastResident(kA), PhysicalId(0)) << "all are pinned";
  for (int i = 0; i < 8; ++i) pool.Unpin(kA, blocks[i]);
  EXPECT_EQ(pool.LeastResident(kA), PhysicalId(3)) << "two live there";
  pool.Release(kA, blocks[3]);
  pool.Release(kA, blocks[4]);
  EXPECT_EQ(pool.LeastResident(kA), PhysicalId(2)) << "one is left there";
  pool.Pin(kA, blocks[5]);
  EXPECT_EQ(pool.LeastResident(kA), PhysicalId(3));
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, FullPackingOf64Works) {
  PhysicalPool pool({64}, 2);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(pool.Acquire(kA, 1), BlockId(64 + i));
  EXPECT_FALSE(pool.CanAcquire(kA));
  pool.CheckInvariants();
}

TEST(PhysicalPoolTest, RandomOperationsKeepTheCounts) {
  std::mt19937 random(3);
  PhysicalPool pool({3, 2, 1}, 12);
  std::vector<std::pair<GroupId, BlockId>> pinned, unpinned;
  for (int i = 0; i < 3000; ++i) {
    const auto choice = random() % 3;
    const GroupId group(static_cast<int32_t>(random() % 3));
    if (choice == 0 && pool.CanAcquire(group)) {
      pinned.emplace_back(group, pool.Acquire(group, 1));
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
