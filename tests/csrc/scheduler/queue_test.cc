#include "scheduler/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace tokenspeed {
namespace {

using testing::ElementsAre;
constexpr int64_t kAgeing = 1000;

class QueueTest : public testing::Test {
 protected:
  void Push(int32_t row, Waiting waiting) {
    waiting.index = RequestIndex(row);
    waiting.arrival = row;
    tenant_of[row] = waiting.tenant;
    root_of[row] = waiting.root;
    queue.Push(waiting);
    queue.CheckInvariants();
  }
  // Serves all, each for as much work.
  std::vector<int32_t> Drain(int64_t charge = 0) {
    std::vector<int32_t> order;
    while (!queue.empty()) {
      const RequestIndex first = queue.first();
      order.push_back(first.value);
      queue.Remove(first);
      if (charge > 0) queue.Charge(tenant_of[first.value], root_of[first.value], charge, true);
      queue.CheckInvariants();
    }
    return order;
  }
  Queue queue{kAgeing};
  std::map<int32_t, int64_t> tenant_of, root_of;
};

TEST_F(QueueTest, ClassThenKeyThenCachedShareThenArrival) {
  Push(0, {.cached_eighths = 1});
  Push(1, {.priority = 1, .queue_key = 9});
  Push(2, {.cached_eighths = 7});
  Push(3, {.queue_key = -1});
  Push(4, {.priority = 1, .queue_key = 2});
  Push(5, {.cached_eighths = 7});
  EXPECT_THAT(Drain(), ElementsAre(4, 1, 3, 2, 5, 0));
}

TEST_F(QueueTest, WhoWaitsGainsAClassPerPeriod) {
  Push(0, {.priority = 0, .since_us = 0});
  queue.Advance(2 * kAgeing);
  Push(1, {.priority = 1, .since_us = 2 * kAgeing});
  Push(2, {.priority = 3, .since_us = 2 * kAgeing});
  EXPECT_THAT(Drain(), ElementsAre(2, 0, 1));
}

TEST_F(QueueTest, PromotionsHappenWhileWaiting) {
  Push(0, {.priority = 0});
  for (int32_t step = 1; step <= 4; ++step) {
    queue.Advance(step * kAgeing / 2);
    Push(step, {.priority = 2, .since_us = step * kAgeing / 2});
    EXPECT_EQ(queue.first().value, step < 4 ? step : 0) << "class 2 after two periods";
    queue.Remove(queue.first());
  }
}

TEST_F(QueueTest, TenantsTakeTurnsByWorkServed) {
  for (int32_t row = 0; row < 6; ++row) Push(row, {.tenant = row < 5 ? 1 : 2});
  EXPECT_THAT(Drain(100), ElementsAre(0, 5, 1, 2, 3, 4));
}

TEST_F(QueueTest, AFloodOfOldRequestsDoesNotPushOutAnotherTenant) {
  for (int32_t row = 0; row < 40; ++row) Push(row, {.tenant = 1});
  for (int32_t served = 0; served < 20; ++served) {
    queue.Advance(served * kAgeing);
    queue.Remove(queue.first());
    queue.Charge(1, 0, 100, true);
  }
  Push(40, {.tenant = 2, .since_us = 19 * kAgeing});
  queue.Remove(queue.first());  // one of tenant 1 may still be first: equal work so far
  queue.Charge(1, 0, 100, true);
  EXPECT_EQ(queue.first().value, 40);
}

TEST_F(QueueTest, RestIsNoCredit) {
  Push(0, {.tenant = 1});
  for (int i = 0; i < 50; ++i) queue.Charge(1, 0, 100, true);
  Push(1, {.tenant = 1});
  Push(2, {.tenant = 2});
  Push(3, {.tenant = 2});
  EXPECT_THAT(Drain(100), ElementsAre(0, 2, 1, 3));
}

TEST_F(QueueTest, RootsOfATenantTakeTurnsByWorkServed) {
  for (int32_t row = 0; row < 50; ++row) Push(row, {.root = 7});
  Push(50, {.root = 8});
  Push(51, {.root = 8});
  const std::vector<int32_t> order = Drain(100);
  EXPECT_THAT(std::vector(order.begin(), order.begin() + 5), ElementsAre(0, 50, 1, 51, 2));
}

TEST_F(QueueTest, RootsShareWhatIsTheirTenants) {
  for (int32_t row = 0; row < 8; ++row) Push(row, {.tenant = 1, .root = row / 2});
  Push(8, {.tenant = 2, .root = 1});
  Push(9, {.tenant = 2, .root = 1});
  EXPECT_THAT(Drain(100), ElementsAre(0, 8, 2, 9, 4, 6, 1, 3, 5, 7));
}

TEST_F(QueueTest, RequestsWithoutARootAreOneRoots) {
  for (int32_t row = 0; row < 3; ++row) Push(row, {});
  Push(3, {.root = 5});
  EXPECT_THAT(Drain(100), ElementsAre(0, 3, 1, 2));
}

TEST_F(QueueTest, ARootThatIsPassedOverGainsAClassPerPeriod) {
  Push(0, {.root = 1});
  for (int32_t row = 1; row <= 5; ++row) Push(row, {.root = 2});
  queue.Charge(0, 1, 1'000'000, false);
  for (int32_t step = 1; step <= 4; ++step) {
    queue.Advance(step * kAgeing / 4);
    EXPECT_EQ(queue.first().value, step < 4 ? step : 0);
    queue.Remove(queue.first());
    queue.Charge(0, 2, 10, true);
  }
}

TEST_F(QueueTest, WhoWaitsForNobodyBeginsWithTheWorkOfTheLastServed) {
  Push(0, {.root = 1});
  queue.Charge(0, 1, 5000, false);
  EXPECT_THAT(Drain(100), ElementsAre(0));  // root 1 came to its turn with 5,000
  Push(1, {.root = 2});
  Push(2, {.root = 2});
  Push(3, {.root = 1});
  EXPECT_THAT(Drain(100), ElementsAre(1, 2, 3)) << "2 begins with 5,000, 1 has 5,100";
}

TEST_F(QueueTest, OnlyWhoWaitsIsRememberedForSure) {
  for (int32_t row = 0; row < 40'000; ++row) {
    queue.Push({.index = RequestIndex(row), .root = row, .arrival = row});
    if (row >= 1000) queue.Remove(RequestIndex(row));
  }
  queue.CheckInvariants();
  EXPECT_EQ(queue.size(), 1000);
  EXPECT_LE(queue.num_groups(), 8200);
}

TEST_F(QueueTest, EveryWaitIsBoundedUnderOverload) {
  std::mt19937_64 random(7);
  const auto pick = [&random](int n) { return static_cast<int64_t>(random() % n); };
  std::vector<int64_t> since;
  int64_t longest = 0, now = 0;
  // Two requests come per one that leaves, of three classes, for a while; then none.
  for (int32_t step = 0; step < 3000; ++step) {
    now += 50;
    queue.Advance(now);
    for (int i = 0; i < 2 && step < 1000; ++i) {
      const auto row = static_cast<int32_t>(since.size());
      since.push_back(now);
      tenant_of[row] = pick(3);
      root_of[row] = pick(5);
      queue.Push({.index = RequestIndex(row),
                  .tenant = tenant_of[row],
                  .root = root_of[row],
                  .priority = static_cast<int32_t>(pick(3)),
                  .since_us = now,
                  .queue_key = pick(100),
                  .arrival = row});
    }
    if (queue.empty()) break;
    const RequestIndex first = queue.first();
    longest = std::max(longest, now - since[first.value]);
    queue.Remove(first);
    queue.Charge(tenant_of[first.value], root_of[first.value], 1, true);
    queue.CheckInvariants();
  }
  EXPECT_TRUE(queue.empty());
  // 1,000 too many at 50 us each, in order of arrival: 50,000 us. A tenant or root with more than
  // its share waits longer for its last ones, and classes and keys add periods.
  EXPECT_LT(longest, 60'000 + 10 * kAgeing);
}

}  // namespace
}  // namespace tokenspeed
