#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kv/kv_table.h"

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
    table.Append(pool_.Acquire<SetId>());
    const SetId set = table.set(table.size() - 1);
    if (tokens.size() < 16) return index_.InsertTail(set, parent, tokens);
    return index_.InsertFull(set, parent, index_.Key(parent, tokens), tokens);
  }
  SetId Find(NodeId parent, const Tokens& tokens) {
    return index_.Find(parent, index_.Key(parent, tokens), tokens);
  }

  PhysicalPool physical_{{1, 1, 1}, 64};
  BlockPool pool_{physical_, {GroupId(0)}, 63};
  BlockPool windows_{physical_, {GroupId(1)}, 63};
  BlockPool rows_{physical_, {GroupId(2)}, 63};
  PrefixIndex index_{pool_, {&windows_}, rows_, 16, 0};
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
  table.Append(pool_.Acquire<SetId>());
  table.Append(pool_.Acquire<SetId>());
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
  old = BlockTable();
  const SetId longer = Insert(table, root_, {1, 2, 3});
  EXPECT_NE(longer, SetId(0));
  EXPECT_EQ(Insert(table, root_, {1, 2}), longer) << "known already";
  EXPECT_EQ(index_.num_nodes(), 1);
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, ATailGrowsUntilItIsFull) {
  BlockTable table;
  const SetId set = Insert(table, root_, {7, 8});
  EXPECT_EQ(index_.InsertTail(set, root_, Tokens{7, 8, 9}), set);
  EXPECT_EQ(index_.FindTail(root_, Tokens{7, 8, 9, 1}), std::pair(set, 3));
  EXPECT_EQ(index_.InsertFull(set, root_, index_.Key(root_, Block(7)), Block(7)), set);
  EXPECT_EQ(Find(root_, Block(7)), set);
  EXPECT_EQ(index_.num_nodes(), 1);
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, AGrownTailGivesWayToAKnownBlockAndLeavesItsSnapshot) {
  BlockTable table;
  const SetId known = Insert(table, root_, Block(7));
  table.Append(pool_.Acquire<SetId>());
  const SetId mine = table.set(1);
  const RowRef row = rows_.Acquire<RowId>();
  EXPECT_EQ(index_.InsertTail(mine, root_, Tokens{7, 9}), mine);
  index_.AttachSnapshot(row.id(), mine, 2, {}, false);
  EXPECT_EQ(index_.InsertTail(mine, root_, Tokens{7, 9, 1}), mine);
  index_.CheckInvariants();
  const SetId other = Insert(table, root_, {7, 9, 1, 2});
  EXPECT_EQ(index_.InsertTail(mine, root_, Tokens{7, 9, 1, 2}), other);
  EXPECT_FALSE(index_.Has(mine));
  EXPECT_EQ(index_.SnapshotAt(other, 2), row.id());
  EXPECT_NE(other, known);
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, WhatHangsOnASetGoesWithIt) {
  BlockTable table;
  const SetId set = Insert(table, root_, Block(0));
  WindowRef window = windows_.Acquire<WindowId>();
  RowRef row = rows_.Acquire<RowId>();
  index_.AttachWindow(set, 0, window.id());
  index_.AttachSnapshot(row.id(), set, 16, {}, false);
  window.Reset();
  index_.CheckInvariants();
  index_.Remove(set);
  EXPECT_EQ(windows_.num_cached() + rows_.num_cached(), 0);
  EXPECT_EQ(physical_.num_taken(GroupId(1)), 0) << "nobody held the window block";
  EXPECT_EQ(physical_.num_taken(GroupId(2)), 1) << "the row is held";
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, AChainKeepsItsNewestTwoSnapshotsAndBranchPoints) {
  BlockTable table;
  NodeId parent = root_;
  std::vector<RowRef> rows;
  std::vector<SetId> sets;
  SnapshotId previous;
  for (int32_t i = 0; i < 5; ++i) {
    sets.push_back(Insert(table, parent, Block(100 * i)));
    parent = NodeId::Of(sets.back());
    RowRef row = rows_.Acquire<RowId>();
    index_.AttachSnapshot(row.id(), sets.back(), 16, previous, i == 1);
    previous = index_.snapshots().id(row.id());
    const RowId newest = row.id();
    row.Reset();
    index_.DropSuperseded(newest);
    index_.CheckInvariants();
  }
  const auto has = [&](int i) { return index_.SnapshotAt(sets[i], 16).value != 0; };
  EXPECT_FALSE(has(0));
  EXPECT_TRUE(has(1)) << "a branch point";
  EXPECT_FALSE(has(2));
  EXPECT_TRUE(has(3));
  EXPECT_TRUE(has(4));
}

TEST_F(PrefixIndexTest, BestSnapshotIsOnTheShareGrain) {
  BlockTable table;
  const SetId set = Insert(table, root_, Block(0));
  for (const int32_t offset : {3, 8, 11}) {
    index_.AttachSnapshot(rows_.Acquire<RowId>().id(), set, offset, {}, false);
  }
  EXPECT_EQ(rows_.num_cached(), 3);
  EXPECT_EQ(index_.snapshots().offset(index_.BestSnapshot(set, 16, 1)), 11);
  EXPECT_EQ(index_.snapshots().offset(index_.BestSnapshot(set, 10, 1)), 8);
  EXPECT_EQ(index_.snapshots().offset(index_.BestSnapshot(set, 16, 4)), 8);
  EXPECT_EQ(index_.BestSnapshot(set, 7, 4), RowId(0));
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
