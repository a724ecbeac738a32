// A prompt without reuse points and its repeat, in groups of every kind: where the first one's
// chunks end, and how much of the second is cached.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/virtual_engine.h"

namespace tokenspeed::test {
namespace {

using testing::ElementsAre;
using Ends = std::vector<int32_t>;

class RepeatTest : public testing::Test {
 protected:
  explicit RepeatTest(int32_t depth = 0) {
    config_ = SmallConfig();
    config_.groups.push_back({.name = "window", .kind = "window", .window = 20});
    config_.groups.push_back({.name = "state", .kind = "state"});
    config_.depth = depth;
    config_.max_step_tokens = 512;
  }

  void ShareBy(int32_t share_tokens) { config_.groups[0].share_tokens = share_tokens; }
  void Start() { scheduler_ = std::make_unique<Scheduler>(config_); }

  // Runs a request alone, which answers with 5 tokens. Returns: where its chunks ended; with
  // `cached_`, where the first one began.
  Ends Run(const std::vector<int32_t>& prompt, std::vector<int32_t> reuse_points = {}) {
    scheduler_->Submit({.id = RequestId(++id_),
                        .prompt = prompt,
                        .max_new_tokens = 5,
                        .reuse_points = reuse_points},
                       0);
    Ends ends;
    cached_ = -1;
    std::deque<std::shared_ptr<const StepPlan>> plans;
    while (scheduler_->HasWork()) {
      if (auto plan = scheduler_->Plan(0)) {
        if (cached_ < 0) cached_ = plan->context_tokens[0];
        const int32_t end = plan->context_tokens[0] + plan->query_start[1];
        if (end <= static_cast<int32_t>(prompt.size())) ends.push_back(end);
        plans.push_back(std::move(plan));
        if (plans.size() <= static_cast<size_t>(config_.depth)) continue;
      }
      std::vector<int32_t> tokens;
      for (const int32_t index : plans.front()->output_index) {
        tokens.push_back(index < 0 ? -1 : 100 + index);
      }
      scheduler_->Commit(plans.front()->step_id, tokens, {}, 0);
      scheduler_->CheckInvariants();
      plans.pop_front();
    }
    return ends;
  }

  SchedulerConfig config_;
  std::unique_ptr<Scheduler> scheduler_;
  int64_t id_ = 0;
  int32_t cached_ = -1;
};

struct Case {
  const char* name;
  int32_t share_tokens;
  int32_t prompt_tokens;
  Ends ends;  // of the first one's chunks
  int32_t cached;
};

class RepeatCaseTest : public RepeatTest,
                       public testing::WithParamInterface<std::tuple<int32_t, Case>> {
 protected:
  RepeatCaseTest() : RepeatTest(std::get<0>(GetParam())) {}
};

TEST_P(RepeatCaseTest, IsCachedUpToItsPoint) {
  const Case& wanted = std::get<1>(GetParam());
  ShareBy(wanted.share_tokens);
  Start();
  const auto prompt = Counting(wanted.prompt_tokens);
  EXPECT_EQ(Run(prompt), wanted.ends);
  EXPECT_EQ(cached_, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Run(prompt), ElementsAre(wanted.prompt_tokens));
    EXPECT_EQ(cached_, wanted.cached);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Prompts, RepeatCaseTest,
    testing::Combine(testing::Values(0, 1),
                     testing::Values(Case{"MultipleOfTheBlock", 1, 64, {48, 64}, 48},
                                     Case{"BetweenBlocks", 1, 70, {64, 70}, 64},
                                     Case{"OneTokenBeyondABlock", 1, 65, {64, 65}, 64},
                                     Case{"ShorterThanABlock", 1, 10, {10}, 0},
                                     Case{"ExactlyOneBlock", 1, 16, {16}, 0},
                                     Case{"OffTheGrain", 4, 70, {68, 70}, 68},
                                     Case{"OffTheGrainWithinABlock", 4, 11, {8, 11}, 8},
                                     Case{"OnTheGrain", 4, 72, {64, 72}, 64},
                                     Case{"OnTheGrainMultipleOfTheBlock", 4, 64, {48, 64}, 48},
                                     Case{"GrainOfABlock", 16, 70, {64, 70}, 64},
                                     Case{"GrainOfABlockMultipleOfIt", 16, 64, {48, 64}, 48})),
    [](const auto& info) {
      return std::get<1>(info.param).name + std::string("AtDepth") +
             std::to_string(std::get<0>(info.param));
    });

TEST_F(RepeatTest, PromptsThatPartInTheirLastBlockShareThePoint) {
  Start();
  Run(Counting(64));
  for (int32_t other = 1; other <= 20; ++other) {  // more than a node remembers children
    auto prompt = Counting(64);
    prompt[60] += 1000 * other;
    EXPECT_THAT(Run(prompt), ElementsAre(64));
    EXPECT_EQ(cached_, 48);
  }
}

TEST_F(RepeatTest, APromptIsCachedStillWhenItsConversationWentOn) {
  Start();
  const auto first = Counting(70);
  Run(first);
  auto history = first;
  for (int turn = 0; turn < 4; ++turn) {
    const auto known = static_cast<int32_t>(history.size());
    for (int32_t token = 100; token < 105; ++token) history.push_back(token);  // the answer
    for (int32_t i = 0; i < 30; ++i) history.push_back(5000 + 100 * turn + i);
    Run(history);
    EXPECT_EQ(cached_, known + 4);  // the fifth token was only sampled
  }
  Run(first);
  EXPECT_EQ(cached_, 64);
}

TEST_F(RepeatTest, GivenReusePointsAreTheOnlyOnes) {
  Start();
  EXPECT_THAT(Run(Counting(70), {40}), ElementsAre(40, 70));
  EXPECT_THAT(Run(Counting(70)), ElementsAre(64, 70));
  EXPECT_EQ(cached_, 40);
}

}  // namespace
}  // namespace tokenspeed::test
