#include "kv/flat_kv.h"

#include <gtest/gtest.h>

namespace tokenspeed {
namespace {

using Tokens = std::vector<int32_t>;

Tokens Sequence(int32_t size) {
  Tokens tokens;
  for (int32_t i = 0; i < size; ++i) tokens.push_back(i);
  return tokens;
}

class FlatKvTest : public testing::Test {
 protected:
  FlatKv Make(int32_t num_physical, int32_t share_tokens = 1) {
    return FlatKv({.block_tokens = 16,
                   .packing = {1},
                   .num_physical_blocks = num_physical,
                   .share_tokens = share_tokens});
  }
  static ChainKeys KeysOf(const FlatKv& kv, NodeId root, const Tokens& tokens) {
    ChainKeys keys = kv.Chain(root);
    keys.Extend(tokens);
    return keys;
  }
  static PrefixMatch Match(FlatKv& kv, NodeId root, const Tokens& tokens) {
    return kv.Match(root, tokens, KeysOf(kv, root, tokens));
  }
  // Writes a whole sequence and lets go of it.
  void Store(FlatKv& kv, NodeId root, const Tokens& tokens) {
    BlockTable table;
    ASSERT_TRUE(kv.Grow(table, (tokens.size() + 15) / 16));
    const std::span<const int32_t> all(tokens);
    const ChainKeys keys = KeysOf(kv, root, tokens);
    size_t index = 0;
    for (; (index + 1) * 16 <= tokens.size(); ++index) {
      kv.Publish(root, table, index, keys[index], all.subspan(index * 16, 16));
    }
    if (tokens.size() % 16 > 0) kv.PublishTail(root, table, index, all.subspan(index * 16));
  }
};

TEST_F(FlatKvTest, MatchesFullBlocksThenTheTail) {
  FlatKv kv = Make(10);
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(40));
  const PrefixMatch match = Match(kv, root, Sequence(60));
  EXPECT_EQ(match.blocks.size(), 2u);
  EXPECT_EQ(match.tail_tokens, 8);
  EXPECT_EQ(Match(kv, root, Sequence(35)).tail_tokens, 3);
  EXPECT_EQ(Match(kv, root, Sequence(31)).tail_tokens, 15) << "a tail of a full block";
}

TEST_F(FlatKvTest, ATailIsFlooredToTheShareGrain) {
  FlatKv kv = Make(10, 4);
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(27));
  EXPECT_EQ(Match(kv, root, Sequence(60)).tail_tokens, 8);
  EXPECT_FALSE(Match(kv, root, Sequence(19)).tail);
}

TEST_F(FlatKvTest, GrowEvictsTheColdestAndIsAllOrNothing) {
  FlatKv kv = Make(5);
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(64));
  BlockTable table;
  ASSERT_TRUE(kv.Grow(table, 2));
  EXPECT_EQ(kv.num_evictions(), 2);
  EXPECT_EQ(Match(kv, root, Sequence(64)).blocks.size(), 2u) << "leaves went first";
  PrefixMatch held = Match(kv, root, Sequence(64));
  EXPECT_FALSE(kv.Grow(table, 3)) << "what is held is not evicted";
  EXPECT_EQ(table.size(), 2u);
  kv.CheckInvariants();
}

TEST_F(FlatKvTest, AnEqualBlockIsReplacedByTheKnownOne) {
  FlatKv kv = Make(10);
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(16));
  BlockTable table;
  kv.Grow(table, 1);
  const SetId mine = table.set(0);
  EXPECT_EQ(kv.Publish(root, table, 0, KeysOf(kv, root, Sequence(16))[0], Sequence(16)), FlatKv::Publication::kReplaced);
  EXPECT_NE(table.set(0), mine);
  EXPECT_EQ(kv.pool().refs(mine), 0);
  kv.CheckInvariants();
}

TEST_F(FlatKvTest, MaxHoldIsTheLargestThatFits) {
  FlatKv kv = Make(8);
  BlockTable table;
  kv.Grow(table, 3);
  EXPECT_EQ(kv.MaxHold(100), 4);
  EXPECT_EQ(kv.MaxHold(2), 2);
  EXPECT_TRUE(kv.CanEverHold(7));
  EXPECT_FALSE(kv.CanEverHold(8));
}

}  // namespace
}  // namespace tokenspeed
