#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include "kv/kv_table.h"

namespace tokenspeed {
namespace {

constexpr GroupId kA{0}, kB{1};

TEST(BlockPoolTest, AcquireTakesOneBlockOfEveryGroup) {
  PhysicalPool physical({1, 2}, 3);  // two physical blocks: one per group
  BlockPool pool(physical, {kA, kB}, 2);
  const BlockRef first = pool.Acquire<SetId>();
  EXPECT_FALSE(pool.CanAcquire()) << "group 0 has no room";
  EXPECT_THROW(pool.Acquire<SetId>(), std::logic_error);
  EXPECT_EQ(pool.num_refs(), 1);
  EXPECT_EQ(physical.owner(kA, pool.block(first.id(), 0)), first.id().value);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, ClassesShareThePhysicalBlocks) {
  PhysicalPool physical({1, 2}, 3);
  BlockPool sets(physical, {kA}, 2), windows(physical, {kB}, 4);
  const BlockRef set = sets.Acquire<SetId>();
  WindowRef window = windows.Acquire<WindowId>();
  EXPECT_FALSE(sets.CanAcquire());
  EXPECT_TRUE(windows.CanAcquire()) << "two windows in a physical block";
  window.Reset();
  EXPECT_TRUE(sets.CanAcquire());
  sets.CheckInvariants();
  windows.CheckInvariants();
}

TEST(BlockPoolTest, TheLastHoldFreesTheThing) {
  PhysicalPool physical({1}, 2);
  BlockPool pool(physical, {kA}, 1);
  BlockRef first = pool.Acquire<SetId>();
  BlockRef second = first.Share();
  first.Reset();
  EXPECT_FALSE(pool.CanAcquire());
  second.Reset();
  EXPECT_TRUE(pool.CanAcquire());
  pool.CheckInvariants();
}

TEST(BlockPoolTest, ACachedThingRestsInOrderOfRelease) {
  PhysicalPool physical({1}, 4);
  BlockPool pool(physical, {kA}, 3);
  BlockRef first = pool.Acquire<SetId>(), second = pool.Acquire<SetId>();
  const SetId a = first.id(), b = second.id();
  pool.SetCached(a.value, true);
  pool.SetCached(b.value, true);
  second.Reset();
  first.Reset();
  EXPECT_EQ(pool.Coldest(), b.value);
  BlockRef again = pool.Hold(b);
  EXPECT_EQ(pool.Coldest(), a.value);
  pool.SetCached(a.value, false);
  EXPECT_EQ(pool.Coldest(), 0);
  again.Reset();
  EXPECT_EQ(pool.Coldest(), b.value);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, SurplusGoesFirst) {
  PhysicalPool physical({1}, 4);
  BlockPool pool(physical, {kA}, 3);
  WindowRef first = pool.Acquire<WindowId>(), second = pool.Acquire<WindowId>();
  const int32_t b = second.id().value;
  pool.SetCached(first.id().value, true);
  pool.SetCached(b, true);
  first.Reset();
  second.ResetAsSurplus();
  EXPECT_EQ(pool.Coldest(), b);
  EXPECT_EQ(pool.ColdestScore(), EvictionQueue::kSurplusScore);
}

TEST(BlockPoolTest, ATableLetsGoOfItsLastBlockFirst) {
  PhysicalPool physical({1}, 4);
  BlockPool pool(physical, {kA}, 3);
  std::vector<int32_t> sets;
  {
    BlockTable table;
    for (int i = 0; i < 3; ++i) {
      table.Append(pool.Acquire<SetId>());
      sets.push_back(table.set(i).value);
      pool.SetCached(sets.back(), true);
    }
  }
  for (int i = 2; i >= 0; --i) {
    EXPECT_EQ(pool.Coldest(), sets[i]);
    pool.SetCached(sets[i], false);
  }
}

TEST(BlockPoolTest, ATableHoldsAChainInOneGoAndLetsGoOfEachOnce) {
  PhysicalPool physical({2}, 40);
  BlockPool pool(physical, {kA}, 60);
  std::vector<SetId> sets;
  {
    BlockTable first;
    for (int i = 0; i < 50; ++i) {
      first.Append(pool.Acquire<SetId>(first.last()));
      sets.push_back(first.last());
      if (i < 40) pool.SetCached(sets.back().value, true);
    }
    BlockTable second;
    second.Hold(pool, std::span(sets).first(30));
    EXPECT_EQ(pool.num_refs(), 80);
    BlockRef fresh = pool.Acquire<SetId>();
    const SetId id = fresh.id();
    second.Replace(3, std::move(fresh));
    EXPECT_EQ(second.set(3), id);
    EXPECT_EQ(pool.refs(sets[3]), 1);
    BlockTable moved = std::move(second);
    EXPECT_EQ(second.size(), 0u);
    EXPECT_EQ(moved.size(), 30u);
    pool.CheckInvariants();
  }
  EXPECT_EQ(pool.num_refs(), 0);
  EXPECT_EQ(pool.queue().num_resting(), 40);
  BlockTable again;
  again.Hold(pool, std::span(sets).first(40));
  EXPECT_EQ(pool.num_held(), 40);
  EXPECT_EQ(pool.queue().num_resting(), 0);
  pool.CheckInvariants();
}

TEST(BlockPoolTest, AWindowTableSlides) {
  PhysicalPool physical({4}, 40);
  BlockPool pool(physical, {kA}, 156);
  WindowTable table(3);
  for (int i = 0; i < 100; ++i) {
    table.Append(pool.Acquire<WindowId>(table.last()));
    const WindowId newest = table.last();
    if (table.size() > 5) table.DropFirst(false);
    EXPECT_EQ(table.window(table.end() - 1), newest);
    EXPECT_EQ(pool.num_held(), static_cast<int32_t>(table.size()));
  }
  EXPECT_EQ(table.first(), 98u);
  EXPECT_EQ(table.end(), 103u);
  EXPECT_FALSE(table.Has(97));
  pool.CheckInvariants();
}

TEST(BlockPoolTest, HoldingAFreeThingIsABrokenInvariant) {
  PhysicalPool physical({1}, 2);
  BlockPool pool(physical, {kA}, 1);
  EXPECT_THROW(pool.Hold(SetId(1)), std::logic_error);
}

}  // namespace
}  // namespace tokenspeed
