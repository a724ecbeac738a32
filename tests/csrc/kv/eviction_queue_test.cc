#include "kv/eviction_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

namespace tokenspeed {
namespace {

std::vector<int32_t> Drain(EvictionQueue& queue, int64_t now_us) {
  std::vector<int32_t> order;
  for (int32_t item = queue.Coldest(now_us); item != 0; item = queue.Coldest(now_us)) {
    order.push_back(item);
    queue.Wake(item);
    queue.CheckInvariants();
  }
  return order;
}

TEST(EvictionQueueTest, WithoutGapsItIsLeastRecentlyUsed) {
  EvictionQueue queue(4);
  for (const int32_t item : {3, 1, 4, 2}) queue.Rest(item, item);
  queue.Wake(1);
  EXPECT_EQ(Drain(queue, 100), (std::vector<int32_t>{3, 4, 2}));
}

TEST(EvictionQueueTest, WhoeverIsExpectedBackLastGoesFirst) {
  EvictionQueue queue(4);
  queue.SetGap(1, 500);  // back in 400
  queue.SetGap(2, 10);   // a little late
  queue.SetGap(3, 10);   // late for long
  queue.Rest(3, 0);
  queue.Rest(1, 1000);
  queue.Rest(2, 1000);
  queue.Rest(4, 700);  // nobody knows: two thirds of 400
  EXPECT_EQ(queue.ColdestScore(1100), 732);
  EXPECT_EQ(Drain(queue, 1100), (std::vector<int32_t>{3, 1, 4, 2}));
}

TEST(EvictionQueueTest, RetainedThingsGoLastUntilTheirTime) {
  EvictionQueue queue(3);
  queue.Retain(1, 50);
  queue.Retain(2, 40);
  for (const int32_t item : {1, 2, 3}) queue.Rest(item, 0);
  EXPECT_EQ(queue.num_retained(), 2);
  EXPECT_EQ(queue.Coldest(10), 3);
  EXPECT_EQ(queue.Coldest(45), 2) << "the retention of 2 ended; it rests as long as 3";
  queue.Wake(3);
  queue.Wake(2);
  EXPECT_EQ(queue.ColdestScore(45), EvictionQueue::kRetainedScore);
  EXPECT_EQ(queue.Coldest(45), 1);
}

TEST(EvictionQueueTest, AParentWithAKeyWaitsForItsChildren) {
  EvictionQueue queue(2);
  queue.SetLeaf(1, false);
  for (const int32_t item : {1, 2}) queue.SetGap(item, 100);
  queue.Rest(2, 0);
  queue.Rest(1, 0);
  EXPECT_EQ(queue.Coldest(0), 2);
  queue.Wake(2);
  EXPECT_EQ(queue.Coldest(0), 0);
  queue.SetLeaf(1, true);
  EXPECT_EQ(queue.Coldest(0), 1);
}

// Against a list that is searched from end to end.
TEST(EvictionQueueTest, RandomOperationsAgreeWithASearch) {
  struct Key {
    int64_t gap = 0, last_use = 0, order = 0, retain = 0;
    bool is_surplus = false, in_list = false;
  };
  std::mt19937 random(5);
  EvictionQueue queue(40);
  std::map<int32_t, Key> resting;
  std::map<int32_t, std::pair<int64_t, int64_t>> keys;  // gap, retention
  std::map<int32_t, uint8_t> accounts;
  int64_t now = 0, order = 0;
  for (int i = 0; i < 20000; ++i) {
    now += random() % 5;
    const int32_t item = 1 + static_cast<int32_t>(random() % 40);
    if (resting.contains(item)) {
      queue.Wake(item);
      resting.erase(item);
    } else {
      if (random() % 3 == 0) queue.SetGap(item, keys[item].first = random() % 4 * 100);
      if (random() % 9 == 0) {
        const int64_t until = now + random() % 200;
        queue.Retain(item, until);
        keys[item].second = std::max(keys[item].second, until);
      }
      const bool is_surplus = random() % 6 == 0;
      queue.Rest(item, now, is_surplus);
      const bool is_retained = keys[item].second > now;
      resting[item] = {keys[item].first,
                       now,
                       ++order,
                       keys[item].second,
                       is_surplus && !is_retained,
                       keys[item].first == 0 && !is_retained};
    }
    if (random() % 20 == 0) {  // some change hands, wherever they are
      const auto account = static_cast<uint8_t>(random() % 3);
      std::vector<int32_t> moved;
      for (int32_t other = 1; other <= 40; ++other) {
        if (random() % 8 != 0) continue;
        moved.push_back(other);
        accounts[other] = account;
      }
      queue.MoveTo(AccountId(account), moved);
    }
    // Rank: surplus, the others by score, retained; heaps before the list; by return before by age.
    const auto rank = [&](const Key& key) {
      const int64_t age = now - key.last_use;
      if (key.is_surplus)
        return std::tuple<int, int64_t, int, int64_t, int64_t>(0, 0, 0, 0, key.order);
      if (key.retain > now)
        return std::tuple<int, int64_t, int, int64_t, int64_t>(2, key.retain, 0, 0, key.order);
      const int64_t away = key.gap - age, late = age / 3 * 2;
      const bool by_return = away >= late && !key.in_list;
      return std::tuple<int, int64_t, int, int64_t, int64_t>(1, -std::max(away, late), key.in_list,
                                                             by_return ? 0 : 1, key.order);
    };
    for (uint8_t account = 0; account < 3; ++account) {
      int32_t expected = 0;
      for (const auto& [candidate, key] : resting) {
        if (accounts[candidate] != account) continue;
        if (expected == 0 || rank(key) < rank(resting[expected])) expected = candidate;
      }
      ASSERT_EQ(queue.Coldest(now, AccountId(account)), expected) << "operation " << i;
    }
    if (i % 100 == 0) queue.CheckInvariants();
  }
}

}  // namespace
}  // namespace tokenspeed
