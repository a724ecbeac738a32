#include "kv/flat_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tokenspeed {
namespace {

using Tokens = std::vector<int32_t>;
constexpr KvGroup kFull{GroupKind::kFull, 1, 0};
constexpr KvGroup kState{GroupKind::kState, 1, 0};
constexpr KvGroup Window(int32_t tokens, int32_t packing = 1) {
  return {GroupKind::kWindow, packing, tokens};
}

Tokens Sequence(int32_t size, int32_t first = 0) {
  Tokens tokens;
  for (int32_t i = 0; i < size; ++i) tokens.push_back(first + i);
  return tokens;
}

class FlatKvTest : public testing::Test {
 protected:
  FlatKvConfig Config(int32_t num_physical, std::vector<KvGroup> groups = {kFull}) {
    return {.block_tokens = 16, .groups = std::move(groups), .num_physical_blocks = num_physical};
  }

  // Computes a sequence as a request would: chunks that end at `points`, then the end.
  void Store(FlatKv& kv, NodeId root, const Tokens& tokens, const Tokens& points = {}) {
    KvTable table;
    ASSERT_TRUE(kv.Grow(table, 0));
    Compute(kv, root, table, tokens, points);
  }

  void Compute(FlatKv& kv, NodeId root, KvTable& table, const Tokens& tokens,
               const Tokens& points = {}) {
    ChainKeys keys = kv.Chain(root);
    keys.Extend(tokens);
    SnapshotId snapshot;
    Tokens ends = points;
    ends.push_back(static_cast<int32_t>(tokens.size()));
    int32_t position = 0;
    for (const int32_t end : ends) {
      ASSERT_TRUE(kv.Grow(table, (end + 15) / 16));
      if (kv.num_state_groups() > 0) table.rows.Write(position, position, end);
      for (int32_t i = position / 16; (i + 1) * 16 <= end; ++i) {
        kv.Publish(root, table, i, keys[i], std::span(tokens).subspan(i * 16, 16));
      }
      SetId set = end >= 16 ? table.blocks.set(end / 16 - 1) : SetId();
      if (end % 16 > 0) {
        const auto tail = std::span(tokens).subspan(end - end % 16, end % 16);
        set = kv.PublishTail(root, table, end / 16, tail);
      }
      const bool is_last = end == ends.back();
      const SnapshotId taken =
          kv.PublishState(table, set, end, snapshot, end == points.front(), is_last);
      if (taken) snapshot = taken;
      kv.Slide(table, end, [](int32_t, size_t) { return false; });
      kv.CheckInvariants();
      position = end;
    }
  }

  PrefixMatch Match(FlatKv& kv, NodeId root, const Tokens& tokens) {
    ChainKeys keys = kv.Chain(root);
    keys.Extend(tokens);
    return kv.Match(root, tokens, keys);
  }
};

// Random prompts over a small alphabet, so that chains branch everywhere, and a pool that evicts.
TEST_F(FlatKvTest, WhatIsRecognisedIsWhatHashingAndMatchingFind) {
  std::mt19937 rng(7);
  const auto draw = [&rng](uint32_t count) { return static_cast<int32_t>(rng() % count); };
  FlatKv kv(Config(40));
  const NodeId root = kv.AcquireRoot("");
  size_t num_recognised = 0;
  for (int round = 0; round < 400; ++round) {
    Tokens tokens;
    for (int32_t block = draw(6); block >= 0; --block) tokens.resize(tokens.size() + 16, draw(2));
    tokens.resize(tokens.size() + draw(16), 9);
    ChainKeys plain = kv.Chain(root), keys = kv.Chain(root);
    plain.Extend(tokens);
    std::vector<KnownSet> known;
    const auto half = static_cast<size_t>(draw(static_cast<uint32_t>(tokens.size())));
    kv.Recognise(root, std::span(tokens).first(half), keys, known);
    kv.Recognise(root, tokens, keys, known);
    ASSERT_EQ(keys.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(keys[i], plain[i]);
    {
      const PrefixMatch match = kv.Match(root, tokens, plain);
      const PrefixMatch again = kv.Match(root, tokens, keys, known);
      EXPECT_EQ(match.num_tokens, again.num_tokens);
      EXPECT_TRUE(std::ranges::equal(match.table.blocks.sets(), again.table.blocks.sets()));
      EXPECT_TRUE(std::ranges::equal(match.table.blocks.sets(), known, {}, {}, &KnownSet::set));
    }
    num_recognised += known.size();
    Store(kv, root, tokens, {static_cast<int32_t>(tokens.size())});
  }
  EXPECT_GT(num_recognised, 400u);
  EXPECT_GT(kv.num_evictions(), 400);
}

TEST_F(FlatKvTest, NothingIsRecognisedBehindABlockThatWasEvicted) {
  FlatKv kv(Config(5));
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(64), {64});
  ChainKeys keys = kv.Chain(root);
  std::vector<KnownSet> known;
  kv.Recognise(root, Sequence(32), keys, known);
  ASSERT_EQ(known.size(), 2u);
  KvTable table;
  ASSERT_TRUE(kv.Grow(table, 4)) << "evicts all of it";
  kv.Recognise(root, Sequence(64), keys, known);
  EXPECT_EQ(known.size(), 2u);
  EXPECT_EQ(keys.size(), 4u);
  EXPECT_EQ(kv.Match(root, Sequence(64), keys, known).num_tokens, 0);
}

TEST_F(FlatKvTest, MatchesFullBlocksThenTheTail) {
  FlatKv kv(Config(10));
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(40), {40});
  const PrefixMatch match = Match(kv, root, Sequence(60));
  EXPECT_EQ(match.table.size(), 2u);
  EXPECT_EQ(match.tail_tokens, 8);
  EXPECT_EQ(match.num_tokens, 40);
  EXPECT_EQ(Match(kv, root, Sequence(35)).tail_tokens, 3);
  EXPECT_EQ(Match(kv, root, Sequence(31)).tail_tokens, 15) << "a tail of a full block";
}

TEST_F(FlatKvTest, ATailIsFlooredToTheShareGrain) {
  FlatKvConfig config = Config(10);
  config.share_tokens = 4;
  FlatKv kv(config);
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(27), {27});
  const PrefixMatch match = Match(kv, root, Sequence(60));
  EXPECT_EQ(match.tail_tokens, 8);
  EXPECT_EQ(match.limit, MatchLimit::kGrain);
  EXPECT_FALSE(Match(kv, root, Sequence(19)).tail);
}

TEST_F(FlatKvTest, GrowEvictsTheColdestAndIsAllOrNothing) {
  FlatKv kv(Config(5));
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(64), {64});
  KvTable table;
  ASSERT_TRUE(kv.Grow(table, 2));
  EXPECT_EQ(kv.num_evictions(), 2);
  const PrefixMatch held = Match(kv, root, Sequence(64));
  EXPECT_EQ(held.table.size(), 2u) << "leaves went first";
  EXPECT_EQ(held.limit, MatchLimit::kEvicted);
  EXPECT_FALSE(kv.Grow(table, 5)) << "what is held is not evicted";
  EXPECT_EQ(table.size(), 2u);
  kv.CheckInvariants();
}

TEST_F(FlatKvTest, AnEqualBlockIsReplacedByTheKnownOne) {
  FlatKv kv(Config(20, {kFull, Window(16)}));
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(16), {16});
  KvTable table;
  kv.Grow(table, 1);
  const SetId mine = table.blocks.set(0);
  const WindowId window = table.windows[0].window(0);
  ChainKeys keys = kv.Chain(root);
  keys.Extend(Sequence(16));
  EXPECT_EQ(kv.Publish(root, table, 0, keys[0], Sequence(16)), FlatKv::Publication::kReplaced);
  EXPECT_NE(table.blocks.set(0), mine);
  EXPECT_NE(table.windows[0].window(0), window);
  EXPECT_EQ(kv.sets().refs(mine), 0);
  kv.CheckInvariants();
}

TEST_F(FlatKvTest, MaxBlocksIsTheMostThatFit) {
  FlatKv kv(Config(8));
  KvTable table, other;
  kv.Grow(table, 3);
  EXPECT_EQ(kv.MaxBlocks(other, 100), 4u);
  EXPECT_EQ(kv.MaxBlocks(table, 100), 7u);
  EXPECT_EQ(kv.MaxBlocks(other, 2), 2u);
  EXPECT_TRUE(kv.CanEverHold(7));
  EXPECT_FALSE(kv.CanEverHold(8));
}

TEST_F(FlatKvTest, AWindowGroupIsMatchedByItsLastWindowOnly) {
  FlatKv kv(Config(40, {kFull, Window(20)}));
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(96), {96});
  const PrefixMatch match = Match(kv, root, Sequence(200));
  EXPECT_EQ(match.num_tokens, 96);
  EXPECT_EQ(match.table.size(), 6u);
  EXPECT_EQ(match.table.windows[0].first(), 4u) << "[76, 96) lies in blocks 4 and 5";
  EXPECT_EQ(match.table.windows[0].end(), 6u);
}

TEST_F(FlatKvTest, AMatchEndsWhereAWindowIsWhole) {
  FlatKv kv(Config(40, {kFull, Window(20)}));
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(100), {100});
  KvTable all;
  ASSERT_TRUE(kv.Grow(all, 15));  // takes the places of the five window blocks behind the window
  EXPECT_EQ(kv.num_evictions(), 0);
  EXPECT_EQ(Match(kv, root, Sequence(200)).num_tokens, 100);
  const PrefixMatch shorter = Match(kv, root, Sequence(60));
  EXPECT_EQ(shorter.num_tokens, 0);
  EXPECT_EQ(shorter.chain_tokens, 60);
  EXPECT_EQ(shorter.limit, MatchLimit::kWindow);
}

TEST_F(FlatKvTest, AStateGroupIsMatchedAtASnapshot) {
  FlatKv kv(Config(40, {kFull, kState}));
  const NodeId root = kv.AcquireRoot("");
  Store(kv, root, Sequence(100), {37, 64});
  const PrefixMatch whole = Match(kv, root, Sequence(200));
  EXPECT_EQ(whole.num_tokens, 100);
  EXPECT_EQ(whole.tail_tokens, 4);
  EXPECT_NE(whole.table.rows.At(100), RowId(0));
  const PrefixMatch between = Match(kv, root, Sequence(90));
  EXPECT_EQ(between.num_tokens, 64);
  EXPECT_EQ(between.chain_tokens, 90);
  EXPECT_EQ(between.limit, MatchLimit::kSnapshot);
  const PrefixMatch inside = Match(kv, root, Sequence(50));
  EXPECT_EQ(inside.num_tokens, 37) << "the first reuse point is a branch point";
  EXPECT_EQ(inside.table.size(), 2u);
  EXPECT_EQ(inside.tail_tokens, 5) << "copied from a full block";
  EXPECT_EQ(Match(kv, root, Sequence(36)).num_tokens, 0);
}

TEST_F(FlatKvTest, APublishedRowIsHandedOverAndReadFromThen) {
  FlatKv kv(Config(40, {kFull, kState}));
  const NodeId root = kv.AcquireRoot("");
  KvTable table;
  Compute(kv, root, table, Sequence(20), {16});
  const PrefixMatch match = Match(kv, root, Sequence(17));
  const RowId snapshot = match.table.rows.At(16);
  EXPECT_NE(snapshot, RowId(0));
  EXPECT_NE(table.rows.At(20), snapshot) << "the request goes on with a fresh row";
}

TEST_F(FlatKvTest, SnapshotsKeepToTheirShare) {
  FlatKvConfig config = Config(41, {kFull, kState});
  config.state_cache_share = 0.1;
  FlatKv kv(config);
  const NodeId root = kv.AcquireRoot("");
  EXPECT_EQ(kv.max_snapshots(), 4);
  for (int32_t i = 0; i < 8; ++i) Store(kv, root, Sequence(16, 100 * i), {16});
  EXPECT_EQ(kv.rows().num_cached(), 4);
  EXPECT_EQ(Match(kv, root, Sequence(17)).num_tokens, 0) << "the coldest went";
  EXPECT_EQ(Match(kv, root, Sequence(17, 700)).num_tokens, 16);
}

TEST_F(FlatKvTest, TheColderClassPays) {
  FlatKv kv(Config(13, {kFull, kState}));  // 12 blocks, one of them for rows only
  const NodeId root = kv.AcquireRoot("");
  kv.SetNow(1);
  Store(kv, root, Sequence(64), {64});  // 4 sets, 1 snapshot
  kv.SetNow(100);
  Store(kv, root, Sequence(64, 500), {64});
  kv.SetNow(200);
  KvTable table;
  ASSERT_TRUE(kv.Grow(table, 3));  // 2 are free
  EXPECT_EQ(kv.num_evictions(), 1) << "the leaf, and its snapshot with it";
  EXPECT_EQ(kv.rows().num_cached(), 1);
  EXPECT_EQ(Match(kv, root, Sequence(70)).num_tokens, 0);
  EXPECT_EQ(Match(kv, root, Sequence(70, 500)).num_tokens, 64);
}

TEST_F(FlatKvTest, TheLeastResidentPhysicalBlockGivesWay) {
  FlatKvConfig config = Config(11, {kFull, Window(16, 4), kState});
  config.state_cache_share = 0;
  FlatKv kv(config);
  const NodeId root = kv.AcquireRoot("");
  for (int32_t i = 0; i < 6; ++i) Store(kv, root, Sequence(16, 100 * i), {16});
  KvTable first, second;  // 6 sets, 6 window blocks in 2 physical blocks, 2 are free
  ASSERT_TRUE(kv.Grow(first, 0));
  KvTable third;
  ASSERT_TRUE(kv.Grow(second, 0));
  ASSERT_TRUE(kv.Grow(third, 0));
  EXPECT_EQ(kv.num_window_evictions(), 2) << "of equals windows go before sets: 2, not 4";
  EXPECT_EQ(kv.num_evictions(), 0);
  kv.CheckInvariants();
}

TEST_F(FlatKvTest, AGapOrdersEvictionAndRetentionOverrulesIt) {
  FlatKvConfig config = Config(9);
  config.retain_share = 1.0;
  FlatKv kv(config);
  const NodeId root = kv.AcquireRoot("");
  const auto store = [&](int32_t first, int64_t gap, int64_t retain) {
    KvTable table;
    ASSERT_TRUE(kv.Grow(table, 2));
    Compute(kv, root, table, Sequence(32, first), {32});
    kv.SetKeys(table, gap, retain, 2);
  };
  kv.SetNow(0);
  store(0, 0, 0);
  store(100, 1000, 0);  // away for long
  store(200, 10, 0);
  store(300, 1000, 5000);
  kv.SetNow(50);
  KvTable table;
  ASSERT_TRUE(kv.Grow(table, 3));
  EXPECT_EQ(Match(kv, root, Sequence(32, 100)).num_tokens, 0);
  EXPECT_EQ(Match(kv, root, Sequence(32, 200)).num_tokens, 16) << "equals: keyed ones first";
  EXPECT_EQ(Match(kv, root, Sequence(32, 0)).num_tokens, 32);
  ASSERT_TRUE(kv.Grow(table, 7));
  EXPECT_EQ(Match(kv, root, Sequence(32, 300)).num_tokens, 16) << "retained goes last";
  kv.CheckInvariants();
}

TEST_F(FlatKvTest, FullGroupsLeaveRoomForOneRequestsWindowsAndRows) {
  FlatKv kv(Config(12, {kFull, Window(32, 4), kState}));
  // [p - 32, p + 1) meets 3 blocks; a row, and one published: 5 of 11 stay out of reach.
  EXPECT_EQ(kv.sets().max_items(), 6);
  EXPECT_EQ(kv.NeedAlone().windows[0], 3);
  EXPECT_EQ(kv.NeedAlone().rows, 2);
}

TEST_F(FlatKvTest, EventsNameWhatCameAndWent) {
  FlatKvConfig config = Config(4);
  config.events = true;
  FlatKv kv(config);
  const NodeId root = kv.AcquireRoot("team");
  Store(kv, root, Sequence(32), {32});
  EventBatch batch = kv.TakeEvents();
  ASSERT_EQ(batch.kinds.size(), 2u);
  EXPECT_EQ(batch.salts, std::vector<std::string>{"team"});
  EXPECT_EQ(batch.parents[1], batch.hashes[0]);
  EXPECT_EQ(batch.tokens, Sequence(32));
  KvTable table;
  kv.Grow(table, 2);
  EventBatch removed = kv.TakeEvents();
  ASSERT_EQ(removed.kinds.size(), 1u);
  EXPECT_EQ(removed.hashes[0], batch.hashes[1]);
  EXPECT_TRUE(kv.TakeEvents().empty());
}

}  // namespace
}  // namespace tokenspeed
