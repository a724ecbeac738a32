// Sessions: turns by delta, their digests, bounds, and that nothing differs from the whole prompt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "support/virtual_engine.h"

namespace tokenspeed::test {
namespace {

using Tokens = std::vector<int32_t>;

class TurnsTest : public testing::Test {
 protected:
  void RunAll() {
    while (engine.Step() != nullptr) engine.scheduler.CheckInvariants();
    EXPECT_FALSE(engine.scheduler.HasWork());
  }
  // Prompt and what the virtual engine answered.
  static Tokens After(Tokens prompt, int32_t num_outputs) {
    for (int32_t i = 0; i < num_outputs; ++i) prompt.push_back(100 + i);
    return prompt;
  }
  void SubmitTurn(int64_t id, int64_t session, const TurnBase& base, const Tokens& rest) {
    engine.scheduler.SubmitTurn(
        {.id = RequestId(id), .prompt = rest, .max_new_tokens = 4, .session = session}, base,
        engine.now_us);
  }
  VirtualEngine engine{SmallConfig(), [](const StepPlan&) { return 1000.0; }};
};

TEST_F(TurnsTest, ADeltaContinuesPromptAndOutputs) {
  engine.Submit({.id = RequestId(1), .max_new_tokens = 4, .session = 7}, Counting(50));
  RunAll();
  const auto base = engine.scheduler.SessionBase(7);
  ASSERT_TRUE(base);
  EXPECT_EQ(base->tokens, 54);
  SubmitTurn(2, 7, *base, Counting(20, 500));
  EXPECT_FALSE(engine.scheduler.SessionBase(7)) << "the turn that runs has the tokens";
  const auto plan = engine.scheduler.Plan(engine.now_us);
  EXPECT_THAT(plan->context_tokens, testing::ElementsAre(53)) << "all but the last output's";
  EXPECT_EQ(plan->num_tokens(), 21);
  EXPECT_EQ(plan->token_ids[0], 103);
  EXPECT_EQ(plan->token_ids[1], 500);
  engine.scheduler.Commit(plan->step_id, Tokens{100}, {}, engine.now_us);
  RunAll();
  EXPECT_EQ(engine.scheduler.SessionBase(7)->tokens, 78);
}

TEST_F(TurnsTest, AnEarlierPositionOfTheSameTokensIsABaseToo) {
  engine.Submit({.id = RequestId(1), .max_new_tokens = 4, .session = 7}, Counting(50));
  RunAll();
  const TurnBase first = *engine.scheduler.SessionBase(7);
  SubmitTurn(2, 7, first, Counting(20, 500));
  RunAll();
  SubmitTurn(3, 7, first, Counting(9, 900));
  RunAll();
  EXPECT_EQ(engine.scheduler.SessionBase(7)->tokens, 54 + 9 + 4);
}

TEST_F(TurnsTest, AWrongBaseIsRefusedAndChangesNothing) {
  engine.Submit({.id = RequestId(1), .max_new_tokens = 4, .session = 7}, Counting(50));
  RunAll();
  const TurnBase base = *engine.scheduler.SessionBase(7);
  EXPECT_THROW(SubmitTurn(2, 7, {base.tokens, base.digest + 1}, {1}), RequestError);
  EXPECT_THROW(SubmitTurn(2, 7, {base.tokens - 1, base.digest}, {1}), RequestError);
  EXPECT_THROW(SubmitTurn(2, 7, {base.tokens + 1, base.digest}, {1}), RequestError);
  EXPECT_THROW(SubmitTurn(2, 7, {-5, base.digest}, {1}), RequestError);
  EXPECT_THROW(SubmitTurn(2, 8, base, {1}), RequestError);
  EXPECT_THROW(SubmitTurn(2, 7, base, Counting(2000)), RequestError) << "beyond the context";
  EXPECT_EQ(engine.scheduler.SessionBase(7)->digest, base.digest);
  SubmitTurn(2, 7, base, {1});
  RunAll();
}

TEST_F(TurnsTest, AWholePromptOfASessionReusesWhatItShares) {
  engine.Submit({.id = RequestId(1), .max_new_tokens = 4, .session = 7}, Counting(50));
  RunAll();
  Tokens next = After(Counting(50), 2);  // the template strips some of the answer
  next.push_back(999);
  engine.Submit({.id = RequestId(2), .max_new_tokens = 4, .session = 7}, next);
  const auto plan = engine.scheduler.Plan(engine.now_us);
  EXPECT_THAT(plan->context_tokens, testing::ElementsAre(52));
  EXPECT_EQ(plan->token_ids[0], 999);
  engine.scheduler.Commit(plan->step_id, Tokens{100}, {}, engine.now_us);
  RunAll();
  EXPECT_EQ(engine.scheduler.SessionBase(7)->tokens, 57);
}

TEST_F(TurnsTest, AnotherSaltSharesTokensButNoBlocks) {
  engine.Submit({.id = RequestId(1), .max_new_tokens = 4, .session = 7}, Counting(50));
  RunAll();
  const TurnBase base = *engine.scheduler.SessionBase(7);
  engine.scheduler.SubmitTurn(
      {.id = RequestId(2), .prompt = Tokens{5}, .max_new_tokens = 1, .salt = "x", .session = 7},
      base, engine.now_us);
  const auto plan = engine.scheduler.Plan(engine.now_us);
  EXPECT_THAT(plan->context_tokens, testing::ElementsAre(0));
}

TEST_F(TurnsTest, TheLeastRecentlyUsedSessionIsForgotten) {
  SchedulerConfig config = SmallConfig();
  config.max_sessions = 2;
  VirtualEngine small(config, [](const StepPlan&) { return 1000.0; });
  for (int64_t session = 1; session <= 3; ++session) {
    small.Submit({.id = RequestId(session), .max_new_tokens = 1, .session = session}, {1, 2, 3});
    while (small.Step() != nullptr) small.scheduler.CheckInvariants();
  }
  EXPECT_FALSE(small.scheduler.SessionBase(1));
  EXPECT_TRUE(small.scheduler.SessionBase(2));
  EXPECT_TRUE(small.scheduler.SessionBase(3));
}

TEST_F(TurnsTest, AnAbortedTurnLeavesItsPromptAsBase) {
  engine.Submit({.id = RequestId(1), .max_new_tokens = 4, .session = 7}, Counting(50));
  engine.scheduler.AbortRequest(RequestId(1), engine.now_us);
  engine.scheduler.CheckInvariants();
  EXPECT_EQ(engine.scheduler.SessionBase(7)->tokens, 50);
}

TEST(ChainTest, AChainAppendedInStretchesHasTheKeysOfOneHashedAtOnce) {
  for (const size_t size : {1, 15, 16, 4095, 4096, 4097, 20'001}) {
    std::vector<int32_t> tokens(size);
    for (size_t i = 0; i < size; ++i) tokens[i] = static_cast<int32_t>(i * 7919 % 50'021);
    ChainKeys plain(Hash128{3, 4}, 16);
    plain.Extend(tokens);
    Chain chain{{}, ChainKeys(Hash128{3, 4}, 16)};
    const size_t half = size / 2;
    const auto learn = [&] { chain.keys.Extend(chain.tokens); };
    chain.Append(std::span(tokens).first(half), 0, learn);
    chain.Append(std::span(tokens).subspan(half), 0, learn);
    EXPECT_TRUE(std::ranges::equal(chain.tokens, tokens));
    ASSERT_EQ(chain.keys.size(), plain.size());
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(chain.keys[i], plain[i]);
  }
}

}  // namespace
}  // namespace tokenspeed::test
