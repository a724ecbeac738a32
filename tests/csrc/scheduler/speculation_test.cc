// Rows with drafts: a scripted drafter is right or wrong at random; the answers must be those of
// the model alone, whatever was drafted, and nothing may leak.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

#include "base/errors.h"
#include "support/virtual_engine.h"

namespace tokenspeed::test {
namespace {

using testing::ElementsAre;
using Tokens = std::vector<int32_t>;

constexpr int32_t kAnswer = 1000;  // the model answers 1000, 1001, ... by output index

class DraftingEngine {
 public:
  DraftingEngine(const SchedulerConfig& config, uint64_t seed) : scheduler(config), random(seed) {}

  int32_t Pick(int32_t most) { return std::uniform_int_distribution<int32_t>(0, most)(random); }

  std::shared_ptr<const StepPlan> Plan() {
    auto plan = scheduler.Plan(0);
    if (plan != nullptr) flying.push_back(plan);
    return plan;
  }

  // Verifies a row's drafts as the device would: longest right prefix.
  void Commit() {
    const auto plan = flying.front();
    flying.pop_front();
    int32_t width = 1;
    for (const int32_t drafts : plan->num_drafts) width = std::max(width, 1 + drafts);
    Tokens tokens(static_cast<size_t>(plan->num_rows()) * width, -1), accepted;
    for (int32_t row = 0; row < plan->num_rows(); ++row) {
      accepted.push_back(Verify(*plan, row, &tokens[static_cast<size_t>(row) * width]));
    }
    CommitResult result;
    scheduler.Commit(plan->step_id, {tokens, accepted, {}}, 0, result);
    Read(result);
    scheduler.CheckInvariants();
  }

  int32_t Verify(const StepPlan& plan, int32_t row, int32_t* tokens) {
    if (plan.output_index[row] < 0) return 0;
    const int64_t id = plan.request_ids[row];
    // The device knows the exact length: what was accepted so far.
    const int32_t first = device_outputs[id];
    const int32_t num_drafts = plan.num_drafts[row];
    const int32_t start = plan.query_start[row + 1] - num_drafts;
    int32_t right = 0;
    for (; right < num_drafts; ++right) {
      const int32_t draft = plan.token_ids[start + right];
      const bool is_right =
          draft == kTokenFromDevice ? Pick(2) > 0 : draft == kAnswer + first + right;
      if (!is_right) break;
    }
    for (int32_t i = 0; i <= right; ++i) tokens[i] = kAnswer + first + i;
    device_outputs[id] += right + 1;
    return right;
  }

  void Read(const CommitResult& result) {
    size_t token = 0;
    for (size_t i = 0; i < result.request_ids.size(); ++i) {
      const int64_t id = result.request_ids[i];
      for (int32_t k = 0; k < result.num_tokens[i]; ++k) {
        EXPECT_EQ(result.tokens[token + k], kAnswer + static_cast<int32_t>(answers[id].size()));
        answers[id].push_back(result.tokens[token + k]);
      }
      token += std::max(1, result.num_tokens[i]);
      if (result.finish_reasons[i] != 0) reasons[id] = result.finish_reasons[i];
    }
    EXPECT_EQ(token, result.tokens.size());
  }

  Scheduler scheduler;
  std::mt19937_64 random;
  std::deque<std::shared_ptr<const StepPlan>> flying;
  std::map<int64_t, int32_t> device_outputs;
  std::map<int64_t, Tokens> answers;
  std::map<int64_t, uint8_t> reasons;
};

Tokens Right(int32_t first, int32_t count) { return Counting(count, kAnswer + first); }

TEST(SpeculationTest, ADecodeRowCarriesItsDraftsAndCommitsWhatIsRight) {
  DraftingEngine engine(SmallConfig(), 1);
  const Tokens prompt = Counting(20);
  engine.scheduler.Submit(
      {.id = RequestId(1), .prompt = prompt, .max_new_tokens = 10, .max_drafts = 4}, 0);
  engine.Plan();
  engine.Commit();
  Tokens drafts = Right(1, 4);
  drafts[2] = 5;
  engine.scheduler.Propose(RequestId(1), drafts);
  const auto plan = engine.Plan();
  EXPECT_THAT(plan->token_ids, ElementsAre(1000, 1001, 1002, 5, 1004));
  EXPECT_THAT(plan->query_start, ElementsAre(0, 5));
  EXPECT_EQ(plan->num_decode_rows, 1);
  engine.Commit();
  EXPECT_THAT(engine.answers[1], ElementsAre(1000, 1001, 1002, 1003));
  const auto next = engine.Plan();
  EXPECT_THAT(next->token_ids, ElementsAre(1003)) << "drafts serve one row";
  EXPECT_THAT(next->context_tokens, ElementsAre(23));
  EXPECT_EQ(engine.scheduler.Stats()["drafted"], 4);
  EXPECT_EQ(engine.scheduler.Stats()["accepted"], 2);
}

TEST(SpeculationTest, AStopInsideAcceptedTokensEndsThere) {
  DraftingEngine engine(SmallConfig(), 1);
  const Tokens prompt = Counting(20), stops = {1002};
  engine.scheduler.Submit({.id = RequestId(1),
                           .prompt = prompt,
                           .max_new_tokens = 10,
                           .stop_ids = stops,
                           .max_drafts = 4},
                          0);
  engine.Plan();
  engine.Commit();
  engine.scheduler.Propose(RequestId(1), Right(1, 4));
  engine.Plan();
  engine.Commit();
  EXPECT_THAT(engine.answers[1], ElementsAre(1000, 1001, 1002));
  EXPECT_EQ(engine.reasons[1], static_cast<uint8_t>(FinishReason::kStop));
}

TEST(SpeculationTest, NoDraftGoesBeyondTheLastToken) {
  DraftingEngine engine(SmallConfig(), 1);
  const Tokens prompt = Counting(20);
  engine.scheduler.Submit(
      {.id = RequestId(1), .prompt = prompt, .max_new_tokens = 3, .max_drafts = 4}, 0);
  engine.Plan();
  engine.Commit();
  engine.scheduler.Propose(RequestId(1), Right(1, 4));
  EXPECT_EQ(engine.Plan()->num_tokens(), 2) << "one token and one draft bring tokens 2 and 3";
  engine.Commit();
  EXPECT_EQ(engine.reasons[1], static_cast<uint8_t>(FinishReason::kLength));
}

TEST(SpeculationTest, HostDraftersRunAtDepthZeroAndDeviceDraftersAhead) {
  SchedulerConfig config = SmallConfig();
  config.depth = 1;
  DraftingEngine engine(config, 1);
  const Tokens prompt = Counting(20), other = Counting(20, 300);
  engine.scheduler.Submit(
      {.id = RequestId(1), .prompt = prompt, .max_new_tokens = 9, .max_drafts = 2}, 0);
  engine.scheduler.Submit({.id = RequestId(2),
                           .prompt = other,
                           .max_new_tokens = 9,
                           .max_drafts = 2,
                           .device_drafts = true},
                          0);
  engine.Plan();
  const auto second = engine.Plan();
  EXPECT_THAT(second->request_ids, ElementsAre(2));
  EXPECT_THAT(second->token_ids, ElementsAre(-1, -1, -1));
  engine.Commit();
  const auto third = engine.Plan();
  EXPECT_THAT(third->request_ids, ElementsAre(1, 2));
  EXPECT_THAT(third->context_tokens, ElementsAre(20, 23)) << "an upper bound";
}

TEST(SpeculationTest, ARequestWhoseDrafterHasNothingRunsAhead) {
  SchedulerConfig config = SmallConfig();
  config.depth = 1;
  DraftingEngine engine(config, 1);
  const Tokens prompt = Counting(20);
  engine.scheduler.Submit(
      {.id = RequestId(1), .prompt = prompt, .max_new_tokens = 9, .max_drafts = 2}, 0);
  engine.Plan();
  EXPECT_EQ(engine.Plan(), nullptr) << "it may draft";
  engine.scheduler.Propose(RequestId(1), {});
  EXPECT_THAT(engine.Plan()->token_ids, ElementsAre(-1));
  engine.Commit();
  engine.scheduler.Propose(RequestId(1), Right(1, 2));  // too late for the row under way
  EXPECT_EQ(engine.Plan(), nullptr) << "the next row waits for that one";
  engine.Commit();
  engine.scheduler.Propose(RequestId(1), Right(2, 2));
  EXPECT_THAT(engine.Plan()->token_ids, ElementsAre(1001, 1002, 1003));
  engine.scheduler.Propose(RequestId(1), {});
  EXPECT_EQ(engine.Plan(), nullptr) << "a row after one with drafts needs to know them";
  engine.Commit();
  EXPECT_THAT(engine.answers[1], ElementsAre(1000, 1001, 1002, 1003, 1004));
}

TEST(SpeculationTest, WrongCountsAreRefused) {
  DraftingEngine engine(SmallConfig(), 1);
  const Tokens prompt = Counting(20);
  Scheduler& scheduler = engine.scheduler;
  scheduler.Submit({.id = RequestId(1), .prompt = prompt, .max_new_tokens = 9, .max_drafts = 2}, 0);
  EXPECT_THROW(scheduler.Propose(RequestId(1), Right(0, 3)), std::invalid_argument);
  EXPECT_THROW(scheduler.Propose(RequestId(2), Right(0, 1)), std::invalid_argument);
  const auto plan = scheduler.Plan(0);
  CommitResult result;
  EXPECT_THROW(scheduler.Commit(1, {Tokens{5, 6}, Tokens{1}, {}}, 0, result),
               std::invalid_argument);
  EXPECT_THROW(scheduler.Commit(1, {Tokens{5, 6}, {}, {}}, 0, result), std::invalid_argument);
  EXPECT_THROW(scheduler.Commit(1, {Tokens{5}, Tokens{-1}, {}}, 0, result), std::invalid_argument);
  scheduler.Commit(1, {Tokens{5}, Tokens{0}, {}}, 0, result);
}

SchedulerConfig StateConfig(const char* speculation) {
  SchedulerConfig config = SmallConfig();
  config.groups.push_back({.name = "s", .kind = "state", .speculation = speculation});
  return config;
}

// Runs a request, in one chunk, up to its second step, in which two of four drafts are right.
std::shared_ptr<const StepPlan> TwoOfFourRight(DraftingEngine& engine, const Tokens& prompt) {
  const Tokens end = {static_cast<int32_t>(prompt.size())};
  engine.scheduler.Submit({.id = RequestId(1),
                           .prompt = prompt,
                           .max_new_tokens = 10,
                           .reuse_points = end,
                           .max_drafts = 4},
                          0);
  engine.Plan();
  engine.Commit();
  Tokens drafts = Right(1, 4);
  drafts[2] = 5;
  engine.scheduler.Propose(RequestId(1), drafts);
  auto plan = engine.Plan();
  engine.Commit();
  return plan;
}

TEST(SpeculationTest, StateHasARowPerPositionAndGoesOnFromTheOneOfTheLastRightDraft) {
  DraftingEngine engine(StateConfig("rows_per_position"), 1);
  const Tokens prompt = Counting(20);
  const auto plan = TwoOfFourRight(engine, prompt);
  EXPECT_EQ(plan->num_write_rows, 5);
  ASSERT_EQ(plan->state_rows.size(), 6u);
  EXPECT_EQ(std::set(plan->state_rows.begin() + 1, plan->state_rows.end()).size(), 5u);
  const auto next = engine.Plan();
  EXPECT_THAT(next->context_tokens, ElementsAre(23));
  EXPECT_THAT(next->token_ids, ElementsAre(1003));
  EXPECT_EQ(next->num_write_rows, 1);
  EXPECT_EQ(next->state_rows[0], plan->state_rows[1 + 2]);
}

TEST(SpeculationTest, StateThatReplaysReadsTheRightDraftsAgain) {
  DraftingEngine engine(StateConfig("replay"), 1);
  const Tokens prompt = Counting(20);
  const auto plan = TwoOfFourRight(engine, prompt);
  EXPECT_THAT(plan->context_tokens, ElementsAre(20));
  ASSERT_EQ(plan->state_rows.size(), 2u);
  const auto next = engine.Plan();
  EXPECT_THAT(next->context_tokens, ElementsAre(21));
  EXPECT_THAT(next->token_ids, ElementsAre(1001, 1002, 1003));
  EXPECT_THAT(next->output_index, ElementsAre(4));
  EXPECT_EQ(next->state_rows[0], plan->state_rows[1]);
  engine.Commit();
  const auto third = engine.Plan();
  EXPECT_THAT(third->token_ids, ElementsAre(1004)) << "nothing was drafted, nothing is replayed";
}

TEST(SpeculationTest, StateGroupsOfBothKindsAndRowsBeyondThePoolAreRefused) {
  SchedulerConfig config = StateConfig("replay");
  config.groups.push_back({.name = "t", .kind = "state"});
  EXPECT_THROW(Scheduler{config}, std::invalid_argument);
  config = StateConfig("rows_per_position");
  config.num_physical_blocks = 12;
  DraftingEngine engine(config, 1);
  const Tokens prompt = Counting(20);
  EXPECT_THROW(
      engine.scheduler.Submit(
          {.id = RequestId(1), .prompt = prompt, .max_new_tokens = 9, .max_drafts = 20}, 0),
      RequestError);
}

void Search(int32_t depth) {
  for (uint64_t seed = 0; seed < 150 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " depth " + std::to_string(depth));
    std::mt19937_64 shape(seed);
    SchedulerConfig config = SmallConfig();
    config.depth = depth;
    config.num_physical_blocks = 12 + static_cast<int32_t>(shape() % 30);
    config.max_step_tokens = 8 + static_cast<int32_t>(shape() % 60);
    config.max_context_tokens = 120;
    if (seed % 3 > 0) {
      const char* speculation = seed % 3 == 1 ? "replay" : "rows_per_position";
      config.groups.push_back({.name = "s", .kind = "state", .speculation = speculation});
      config.num_physical_blocks += 12;
    }
    DraftingEngine engine(config, seed);
    std::map<int64_t, int32_t> asked;
    for (int64_t id = 1; id <= 10; ++id) {
      const Tokens prompt = Counting(1 + engine.Pick(50), engine.Pick(1) * 500);
      asked[id] = 1 + engine.Pick(40);
      engine.scheduler.Submit({.id = RequestId(id),
                               .prompt = prompt,
                               .max_new_tokens = asked[id],
                               .max_drafts = engine.Pick(5),
                               .device_drafts = engine.Pick(1) == 1},
                              0);
    }
    for (int i = 0; i < 20'000 && engine.scheduler.HasWork(); ++i) {
      for (int64_t id = 1; id <= 10; ++id) {
        Tokens drafts = Right(static_cast<int32_t>(engine.answers[id].size()), engine.Pick(5));
        if (!drafts.empty() && engine.Pick(1) == 0) drafts[engine.Pick(std::ssize(drafts) - 1)] = 3;
        try {
          engine.scheduler.Propose(RequestId(id), drafts);
        } catch (const std::invalid_argument&) {
          continue;  // ended, or it takes fewer
        }
      }
      engine.Plan();
      if (!engine.flying.empty() && engine.Pick(2) > 0) engine.Commit();
    }
    while (!engine.flying.empty()) engine.Commit();
    for (const auto& [id, count] : asked) {
      EXPECT_EQ(std::ssize(engine.answers[id]), count) << "request " << id;
    }
    EXPECT_FALSE(engine.scheduler.HasWork());
    EXPECT_EQ(engine.scheduler.Stats()["blocks_used"], 0);
  }
}

TEST(SpeculationTest, RandomDraftsChangeNoAnswerAtDepth0) { Search(0); }
TEST(SpeculationTest, RandomDraftsChangeNoAnswerAtDepth1) { Search(1); }

}  // namespace
}  // namespace tokenspeed::test
