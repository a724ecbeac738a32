#include "kv/store_index.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace tokenspeed {
namespace {

TEST(StoreIndexTest, FindsWhatWasInsertedAndNotErased) {
  std::mt19937_64 random(1);
  StoreIndex index;
  std::set<Hash128> oracle;
  for (int i = 0; i < 20000; ++i) {
    // Few different low halves: runs are long and wrap around.
    const Hash128 key{random() % 64 * 0x0101, random() % 8};
    if (random() % 2 == 0) {
      index.Insert(key);
      if (key != Hash128{}) oracle.insert(key);
    } else {
      index.Erase(key);
      oracle.erase(key);
    }
    ASSERT_EQ(index.size(), oracle.size());
    ASSERT_EQ(index.Contains(key), oracle.contains(key));
    if (i % 100 == 0) index.CheckInvariants();
  }
  for (const Hash128& key : oracle) EXPECT_TRUE(index.Contains(key));
}

TEST(StoreIndexTest, TheKeyOfAnEmptySlotIsNeverKept) {
  StoreIndex index;
  index.Insert({});
  EXPECT_FALSE(index.Contains({}));
  EXPECT_EQ(index.size(), 0u);
}

}  // namespace
}  // namespace tokenspeed
