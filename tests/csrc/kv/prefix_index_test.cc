#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <random>

namespace tokenspeed {
namespace {

using Tokens = std::vector<int32_t>;

class PrefixIndexTest : public testing::Test {
 protected:
  static Tokens Block(int32_t first) {
    Tokens tokens(16);
    for (int i = 0; i < 16; ++i) tokens[i] = first + i;
    return tokens;
  }
  SetId Insert(BlockTable& table, NodeId parent, const Tokens& tokens) {
    table.Append(*pool_.Acquire());
    const SetId set = table.set(table.size() - 1);
    if (tokens.size() < 16) return index_.InsertTail(set, parent, tokens) ? set : SetId();
    return index_.InsertFull(set, parent, index_.Key(parent, tokens), tokens);
  }
  SetId Find(NodeId parent, const Tokens& tokens) {
    return index_.Find(parent, index_.Key(parent, tokens), tokens);
  }

  BlockPool pool_{{1}, 64};
  PrefixIndex index_{pool_, 16, 0};
  NodeId root_ = index_.AcquireRoot("");
};

TEST_F(PrefixIndexTest, FindsAFullBlockUnderItsParentOnly) {
  BlockTable table;
  const SetId first = Insert(table, root_, Block(0));
  const SetId second = Insert(table, NodeId::Of(first), Block(50));
  EXPECT_EQ(Find(root_, Block(0)), first);
  EXPECT_EQ(Find(NodeId::Of(first), Block(50)), second);
  EXPECT_EQ(Find(root_, Block(50)), SetId(0));
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, NamespacesDoNotMeet) {
  BlockTable table;
  const NodeId other = index_.AcquireRoot("tenant");
  Insert(table, root_, Block(0));
  EXPECT_EQ(Find(other, Block(0)), SetId(0));
  EXPECT_EQ(index_.FindTail(other, Block(0)).second, 0);
  EXPECT_EQ(index_.AcquireRoot("tenant"), other);
}

TEST_F(PrefixIndexTest, AHitIsVerified) {
  BlockTable table;
  table.Append(*pool_.Acquire());
  table.Append(*pool_.Acquire());
  const Hash128 forged{1, 2};
  const SetId set = table.set(0);
  EXPECT_EQ(index_.InsertFull(set, root_, forged, Block(0)), set);
  EXPECT_EQ(index_.Find(root_, forged, Block(9)), SetId(0)) << "same key, other tokens";
  EXPECT_EQ(index_.Find(NodeId::Of(set), forged, Block(0)), SetId(0)) << "other parent";
  EXPECT_EQ(index_.InsertFull(table.set(1), root_, forged, Block(9)), SetId(0)) << "stays private";
}

TEST_F(PrefixIndexTest, TheFirstOfTwoEqualBlocksStays) {
  BlockTable table;
  const SetId first = Insert(table, root_, Block(0));
  EXPECT_EQ(Insert(table, root_, Block(0)), first);
  EXPECT_EQ(index_.num_nodes(), 1);
}

TEST_F(PrefixIndexTest, ATailIsMatchedTokenByToken) {
  BlockTable table;
  const SetId tail = Insert(table, root_, {1, 2, 3, 4, 5});
  EXPECT_EQ(index_.FindTail(root_, Tokens{1, 2, 3, 9}), std::pair(tail, 3));
  EXPECT_EQ(index_.FindTail(root_, Tokens{7, 2}).second, 0);
  const SetId full = Insert(table, root_, Block(7));
  EXPECT_EQ(index_.FindTail(root_, Tokens{7, 8, 0}), std::pair(full, 2));
}

TEST_F(PrefixIndexTest, AParentRemembersEightChildren) {
  BlockTable table;
  std::vector<SetId> tails;
  for (int32_t i = 0; i < 9; ++i) tails.push_back(Insert(table, root_, {i, 1}));
  EXPECT_EQ(index_.FindTail(root_, Tokens{0, 1}).second, 0) << "the oldest was forgotten";
  EXPECT_EQ(index_.FindTail(root_, Tokens{1, 1}), std::pair(tails[1], 2));
  EXPECT_EQ(index_.num_nodes(), 8);
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, ALongerTailReplacesAColdShorterOne) {
  BlockTable table, old;
  Insert(old, root_, {1, 2});
  old.Truncate(0);
  EXPECT_NE(Insert(table, root_, {1, 2, 3}), SetId(0));
  EXPECT_EQ(Insert(table, root_, {1, 2}), SetId(0)) << "known already";
  EXPECT_EQ(index_.num_nodes(), 1);
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, AParentIsNotRemovedBeforeItsChildren) {
  BlockTable table;
  const SetId first = Insert(table, root_, Block(0));
  const SetId second = Insert(table, NodeId::Of(first), Block(50));
  EXPECT_THROW(index_.Remove(first), std::logic_error);
  index_.Remove(second);
  index_.Remove(first);
  EXPECT_EQ(Find(root_, Block(0)), SetId(0));
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, ErasingKeepsProbeRunsWhole) {
  std::mt19937 random(11);
  std::map<int32_t, BlockTable> held;
  for (int i = 0; i < 4000; ++i) {
    const auto first = static_cast<int32_t>(random() % 200) * 100;
    if (held.contains(first)) {
      const SetId set = held[first].set(0);
      EXPECT_EQ(Find(root_, Block(first)), set);
      index_.Remove(set);
      held.erase(first);
    } else if (held.size() < 60) {
      EXPECT_EQ(Find(root_, Block(first)), SetId(0));
      Insert(held[first], root_, Block(first));
    }
    if (i % 50 == 0) index_.CheckInvariants();
  }
  for (auto& [first, table] : held) EXPECT_EQ(Find(root_, Block(first)), table.set(0));
}

}  // namespace
}  // namespace tokenspeed
