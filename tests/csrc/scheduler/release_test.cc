// Children on a shared prefix, and what the end of one gives back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/errors.h"
#include "kv/flat_kv.h"
#include "support/virtual_engine.h"

namespace tokenspeed::test {
namespace {

using testing::AnyOf;
using testing::Each;
using Tokens = std::vector<int32_t>;

constexpr int32_t kBlock = 16;
constexpr int64_t kParent = 100;

struct Mix {
  const char* name;
  std::vector<GroupSpec> groups;
};

const Mix kFull{"full", {{.name = "full"}, {.name = "indexer", .packing = 4}}};
const Mix kHybrid{"hybrid",
                  {{.name = "full"},
                   {.name = "window", .kind = "window", .window = 40},
                   {.name = "state", .kind = "state", .packing = 2}}};

class ReleaseTest : public testing::TestWithParam<Mix> {
 protected:
  SchedulerConfig Config() const {
    SchedulerConfig config = SmallConfig();
    config.groups = GetParam().groups;
    config.num_physical_blocks = 20'000;
    config.max_running = 32;
    config.max_step_tokens = 2048;
    config.max_context_tokens = 120'000;
    config.state_cache_share = 0.5;
    return config;
  }

  // Runs a turn to its end. Returns: its tokens, prompt and answer.
  Tokens Turn(int64_t session, Tokens prompt, int64_t root = kParent, int32_t max_new = 4) {
    const int64_t id = next_id++;
    engine.Submit(
        {.id = RequestId(id), .max_new_tokens = max_new, .session = session, .root = root}, prompt);
    while (engine.scheduler.HasWork()) engine.Step();
    for (int32_t i = 0; i < max_new; ++i) prompt.push_back(100 + i);
    return prompt;
  }
  static Tokens Child(Tokens parent, int32_t child, int32_t size) {
    for (int32_t i = 0; i < size; ++i) parent.push_back(1'000'000 * (child + 1) + i);
    return parent;
  }
  // Logical blocks of each group that somebody holds or the index knows.
  std::vector<int64_t> Taken() {
    std::vector<int64_t> taken;
    for (int32_t group = 0; group < engine.scheduler.kv().num_groups(); ++group) {
      taken.push_back(engine.scheduler.kv().physical().num_taken(GroupId(group)));
    }
    engine.scheduler.CheckInvariants();
    return taken;
  }
  int64_t Cached() { return engine.scheduler.Stats()["cached_tokens"]; }
  Released Release(int64_t session) {
    const auto released = engine.scheduler.Release(session, engine.now_us);
    EXPECT_TRUE(released.has_value());
    return released.value_or(Released{});
  }

  VirtualEngine engine{Config(), H200Us};
  int64_t next_id = 1;
};

std::vector<int64_t> Minus(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

TEST_P(ReleaseTest, SixteenChildrenCostTheirSuffixesAndClosingOneFreesExactlyItsOwn) {
  const Tokens parent = Turn(kParent, Counting(99'997));
  Turn(50, Child(parent, 50, 300));
  Release(50);  // a chain that is forked keeps other snapshots than one that ends
  const std::vector<int64_t> alone = Taken();
  EXPECT_EQ(alone[0], 100'000 / kBlock) << "the last token of the answer is not read";

  std::vector<int64_t> cost, taken = alone;
  int64_t cached = Cached();
  for (int32_t child = 0; child < 16; ++child) {
    Turn(child + 1, Child(parent, child, 300));
    EXPECT_GE(Cached() - cached, 100'000) << "all that the parent computed";
    EXPECT_LE(Cached() - cached, 100'001) << "and the token that all children began with";
    cached = Cached();
    const std::vector<int64_t> own = Minus(Taken(), taken);
    if (child == 0) cost = own;
    EXPECT_EQ(own, cost) << "each as much as the others";
    taken = Taken();
  }
  EXPECT_EQ(cost[0], (1 + 300 + 3 + kBlock - 1) / kBlock);

  for (int32_t child = 0; child < 16; ++child) {
    const std::vector<int64_t> before = Taken();
    const Released released = Release(child + 1);
    EXPECT_EQ(released.blocks, cost) << "exactly its own";
    EXPECT_THAT(released.tokens, AnyOf(303, 304)) << "the first may be found in the others' blocks";
    EXPECT_EQ(Minus(before, Taken()), cost);
  }
  EXPECT_EQ(Taken(), alone) << "what the parent has";
  EXPECT_EQ(Release(kParent).blocks, alone);
  EXPECT_THAT(Taken(), Each(0));
}

// The parent's last 3 tokens lie in a block of their own until the first child fills it up: then in
// one of the children's, of which the last one leaves them.
TEST_P(ReleaseTest, ATailIsSharedUntilTheLastChildIsOver) {
  // Of a state inside a block the index remembers the 8 newest nodes at which it may be.
  const int32_t num_children = GetParam().name == kHybrid.name ? 6 : 16;
  const Tokens parent = Turn(kParent, Counting(1000));
  Turn(50, Child(parent, 50, 300));
  Release(50);
  const std::vector<int64_t> alone = Taken();
  EXPECT_EQ(alone[0], 1003 / kBlock + 1);
  const int64_t own = (1307 + kBlock - 1) / kBlock - 1003 / kBlock;
  for (int32_t child = 0; child < num_children; ++child) Turn(child + 1, Child(parent, child, 300));
  EXPECT_EQ(Taken()[0], alone[0] - 1 + num_children * own);

  int64_t released = 0;
  for (int32_t child = 0; child < num_children; ++child) {
    const int64_t before = Cached();
    Turn(50, Child(parent, 50, 20));
    EXPECT_GE(Cached() - before, 1003) << "the parent's end is there with every one that goes";
    Release(50);
    released += Release(child + 1).blocks[0];
  }
  EXPECT_EQ(released, num_children * own - 1);
  EXPECT_EQ(Taken(), alone);
  EXPECT_EQ(Release(kParent).blocks, alone);
  EXPECT_THAT(Taken(), Each(0));
}

TEST_P(ReleaseTest, OthersFindAfterAReleaseWhatTheyFoundBefore) {
  const Tokens parent = Turn(kParent, Counting(1000));
  std::vector<Tokens> turns;
  for (int32_t child = 0; child < 4; ++child) {
    turns.push_back(Turn(child + 1, Child(parent, child, 100)));
  }
  Release(2);
  for (const int32_t child : {0, 2, 3}) {
    const int64_t before = Cached();
    Turn(child + 1, Child(turns[child], 50, 20));
    EXPECT_EQ(Cached() - before, std::ssize(turns[child]) - 1) << "child " << child;
  }
  const int64_t before = Cached();
  Turn(5, Child(turns[1], 60, 20));
  EXPECT_GE(Cached() - before, 1003) << "of the one that is over, what the parent has";
  EXPECT_LE(Cached() - before, 1004) << "which they all read to its end";
}

// Children may come long after the parent's own next turns: what they fork from is not replaced.
TEST_P(ReleaseTest, ForksFindTheSameEndHoweverManyGoOnFromIt) {
  const Tokens parent = Turn(kParent, Counting(1000));
  for (int32_t child = 0; child < 5; ++child) {
    const int64_t before = Cached();
    Tokens turn = Turn(child + 1, Child(parent, child, 100));
    EXPECT_GE(Cached() - before, 1003) << "child " << child;
    Turn(child + 1, Child(turn, 20 + child, 100));
  }
}

TEST_P(ReleaseTest, ChildrenThatStartWhileTheParentComputesCostTheSame) {
  const Tokens prompt = Counting(20'000);
  engine.Submit({.id = RequestId(1), .max_new_tokens = 4, .session = kParent, .root = kParent},
                prompt);
  engine.Step();
  for (int32_t child = 0; child < 16; ++child) {
    engine.Submit(
        {.id = RequestId(child + 2), .max_new_tokens = 4, .session = child + 1, .root = kParent},
        Child(prompt, child, 300));
  }
  int64_t most = 0;
  while (engine.scheduler.HasWork()) {
    engine.Step();
    most = std::max(most, Taken()[0]);
  }
  EXPECT_LE(most, 20'000 / kBlock + 1 + 17 * (304 / kBlock + 2));
  EXPECT_GE(Cached(), 16 * 19'968) << "nobody computes it a second time";
  for (int32_t child = 0; child < 16; ++child) Release(child + 1);
  const std::vector<int64_t> left = Taken();
  EXPECT_EQ(left[0], 20'003 / kBlock + 1);
  EXPECT_EQ(Release(kParent).blocks, left);
  EXPECT_THAT(Taken(), Each(0));
}

TEST_P(ReleaseTest, AParentThatIsOverLeavesWhatItsChildrenHave) {
  const Tokens parent = Turn(kParent, Counting(1000));
  Turn(1, Child(parent, 0, 100));
  Turn(2, Child(parent, 1, 100));
  const int64_t before = Taken()[0];
  EXPECT_LE(Release(kParent).blocks[0], 1) << "its tail at most: others copied it";
  const int64_t first = Release(1).blocks[0], second = Release(2).blocks[0];
  EXPECT_LT(first, 10);
  EXPECT_GE(first + second + 1, before - 1000 / kBlock) << "the last one takes the prefix along";
  EXPECT_THAT(Taken(), Each(0));
}

TEST_P(ReleaseTest, EqualTurnsOfTwoSessionsAreNobodysOwn) {
  const Tokens prompt = Counting(200);
  Turn(1, prompt, 1);
  Turn(2, prompt, 2);
  EXPECT_EQ(Release(1).tokens, 0);
  EXPECT_GE(Release(2).tokens, 203);
  EXPECT_THAT(Taken(), Each(0));
}

TEST_P(ReleaseTest, AnotherNamespaceHasNothingInCommon) {
  const Tokens prompt = Counting(200);
  engine.Submit({.id = RequestId(1), .max_new_tokens = 1, .salt = "a", .session = 1}, prompt);
  while (engine.scheduler.HasWork()) engine.Step();
  Turn(2, prompt, 2);
  const std::vector<int64_t> both = Taken();
  const Released released = Release(1);
  EXPECT_GE(released.tokens, 200);
  EXPECT_EQ(Minus(both, Taken()), released.blocks);
}

TEST_P(ReleaseTest, WhatARequestWithoutASessionGoesOnFromStays) {
  const Tokens parent = Turn(1, Counting(200), 1);
  Turn(0, Child(parent, 0, 50), 0);
  EXPECT_LE(Release(1).blocks[0], 1);
  const int64_t before = Cached();
  Turn(0, Child(parent, 0, 50), 0);
  EXPECT_GE(Cached() - before, 240);
}

TEST_P(ReleaseTest, ASessionWithALiveRequestIsNotReleased) {
  engine.Submit({.id = RequestId(1), .max_new_tokens = 50, .session = 3}, Counting(100));
  engine.Step();
  try {
    engine.scheduler.Release(3, engine.now_us);
    FAIL() << "it lives";
  } catch (const RequestError& error) {
    EXPECT_EQ(error.code(), "session_busy");
    EXPECT_THAT(error.what(), testing::HasSubstr("has 1 request"));
  }
  EXPECT_TRUE(engine.scheduler.AbortRequest(RequestId(1), engine.now_us));
  EXPECT_GE(Release(3).tokens, 64);
  EXPECT_THAT(Taken(), Each(0));
}

TEST_P(ReleaseTest, WhoIsNotKnownIsNotReleased) {
  EXPECT_FALSE(engine.scheduler.Release(7, engine.now_us));
  EXPECT_FALSE(engine.scheduler.Release(0, engine.now_us));
  Turn(7, Counting(50), 7);
  EXPECT_TRUE(engine.scheduler.Release(7, engine.now_us));
  EXPECT_FALSE(engine.scheduler.Release(7, engine.now_us));
}

TEST_P(ReleaseTest, TheTurnAfterAReleaseStartsAnew) {
  Tokens first = Turn(1, Counting(200), 1);
  Release(1);
  EXPECT_FALSE(engine.scheduler.SessionBase(1));
  const int64_t before = Cached();
  first.push_back(7);
  Turn(1, first, 1);
  EXPECT_EQ(Cached() - before, 0);
}

INSTANTIATE_TEST_SUITE_P(Mixes, ReleaseTest, testing::Values(kFull, kHybrid),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tokenspeed::test
