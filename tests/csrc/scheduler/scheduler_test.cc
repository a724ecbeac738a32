#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"

namespace tokenspeed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Tokens = std::vector<int32_t>;

SchedulerConfig Config() {
  return {.block_tokens = 16,
          .groups = {{.name = "full"}},
          .num_physical_blocks = 33,
          .max_running = 4,
          .max_waiting = 8,
          .max_step_tokens = 64,
          .max_context_tokens = 512};
}

Tokens Prompt(int32_t size, int32_t first = 1) {
  Tokens tokens;
  for (int32_t i = 0; i < size; ++i) tokens.push_back(first + i);
  return tokens;
}

struct Options {
  int32_t max_new = 4, min_new = 0, priority = 0;
  Tokens stop_ids = {}, outputs = {};
  std::string salt = {};
  int64_t deadline_us = 0;
};

class SchedulerTest : public testing::Test {
 protected:
  void Submit(Scheduler& scheduler, int64_t id, const Tokens& prompt, const Options& options = {}) {
    scheduler.Submit({.id = RequestId(id),
                      .prompt = prompt,
                      .outputs = options.outputs,
                      .max_new_tokens = options.max_new,
                      .min_new_tokens = options.min_new,
                      .stop_ids = options.stop_ids,
                      .priority = options.priority,
                      .salt = options.salt,
                      .deadline_us = options.deadline_us},
                     0);
    scheduler.CheckInvariants();
  }

  // Commits with 100 + output index as the sampled token of each row.
  CommitResult Commit(Scheduler& scheduler, const StepPlan& plan, int64_t now_us = 0) {
    Tokens tokens;
    for (const int32_t index : plan.output_index) tokens.push_back(index < 0 ? -1 : 100 + index);
    CommitResult result = scheduler.Commit(plan.step_id, tokens, {}, now_us);
    scheduler.CheckInvariants();
    return result;
  }

  CommitResult Step(Scheduler& scheduler) { return Commit(scheduler, *scheduler.Plan(0)); }

  void RunAll(Scheduler& scheduler) {
    while (const auto plan = scheduler.Plan(0)) Commit(scheduler, *plan);
    EXPECT_FALSE(scheduler.HasWork());
  }

  std::string StateOf(Scheduler& scheduler, int64_t id) {
    for (const RequestView& view : scheduler.Requests()) {
      if (view.id == RequestId(id)) return view.state;
    }
    return "";
  }
};

TEST_F(SchedulerTest, DecodesComeFirstThenChunksThenAdmissions) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(10));
  Step(scheduler);
  Submit(scheduler, 2, Prompt(100, 1000));
  Submit(scheduler, 3, Prompt(100, 2000));
  auto plan = scheduler.Plan(0);
  EXPECT_THAT(plan->request_ids, ElementsAre(1, 2));
  EXPECT_EQ(plan->num_decode_rows, 1);
  EXPECT_THAT(plan->query_start, ElementsAre(0, 1, 64));
  EXPECT_THAT(plan->output_index, ElementsAre(1, -1));
  Commit(scheduler, *plan);
  plan = scheduler.Plan(0);
  EXPECT_THAT(plan->request_ids, ElementsAre(1, 2, 3));
  EXPECT_THAT(plan->context_tokens, ElementsAre(11, 63, 0));
  EXPECT_THAT(plan->query_start, ElementsAre(0, 1, 38, 64));
  EXPECT_THAT(plan->admitted, ElementsAre(std::array{2, 2}));
  Commit(scheduler, *plan);
  RunAll(scheduler);
}

TEST_F(SchedulerTest, PriorityThenArrivalOrdersTheQueue) {
  SchedulerConfig config = Config();
  config.max_running = 1;
  Scheduler scheduler(config);
  for (const auto& [id, priority] : {std::pair(1, 0), {2, 5}, {3, 5}}) {
    Submit(scheduler, id, Prompt(4, id * 100), {.max_new = 1, .priority = priority});
  }
  std::vector<int64_t> order;
  while (const auto plan = scheduler.Plan(0)) {
    order.push_back(plan->request_ids[0]);
    Commit(scheduler, *plan);
  }
  EXPECT_THAT(order, ElementsAre(2, 3, 1));
}

TEST_F(SchedulerTest, NothingOvertakesAHeadThatDoesNotFit) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(300), {.max_new = 100});
  for (int i = 0; i < 5; ++i) Step(scheduler);
  Submit(scheduler, 2, Prompt(400, 2000));
  Submit(scheduler, 3, Prompt(4, 5000));
  EXPECT_THAT(scheduler.Plan(0)->request_ids, ElementsAre(1));
}

TEST_F(SchedulerTest, ALookaheadRowTakesItsTokenFromTheDevice) {
  SchedulerConfig config = Config();
  config.depth = 1;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(10), {.max_new = 3});
  const auto first = scheduler.Plan(0), second = scheduler.Plan(0);
  EXPECT_EQ(scheduler.Plan(0), nullptr) << "depth + 1 plans are out";
  EXPECT_THAT(second->token_ids, ElementsAre(kTokenFromDevice));
  EXPECT_THAT(second->context_tokens, ElementsAre(10));
  EXPECT_THAT(second->output_index, ElementsAre(1));
  Commit(scheduler, *first);
  const auto third = scheduler.Plan(0);
  EXPECT_THAT(third->output_index, ElementsAre(2));
  Commit(scheduler, *second);
  EXPECT_EQ(scheduler.Plan(0), nullptr) << "the length is known ahead";
  EXPECT_THAT(Commit(scheduler, *third).finish_reasons,
              ElementsAre(static_cast<uint8_t>(FinishReason::kLength)));
}

TEST_F(SchedulerTest, AStopDropsTheLookaheadRowAndDrains) {
  SchedulerConfig config = Config();
  config.depth = 1;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(10), {.max_new = 9, .stop_ids = {100}});
  const auto first = scheduler.Plan(0), second = scheduler.Plan(0);
  EXPECT_THAT(Commit(scheduler, *first).finish_reasons,
              ElementsAre(static_cast<uint8_t>(FinishReason::kStop)));
  EXPECT_EQ(StateOf(scheduler, 1), "Draining");
  EXPECT_FALSE(scheduler.AbortRequest(RequestId(1), 0));
  EXPECT_TRUE(Commit(scheduler, *second).request_ids.empty());
  EXPECT_FALSE(scheduler.HasWork());
}

TEST_F(SchedulerTest, StopIdsCountAfterMinNewTokens) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(4), {.max_new = 9, .min_new = 2, .stop_ids = {100, 101, 102}});
  Tokens got;
  while (const auto plan = scheduler.Plan(0)) got.push_back(Commit(scheduler, *plan).tokens[0]);
  EXPECT_THAT(got, ElementsAre(100, 101, 102));
}

TEST_F(SchedulerTest, ASecondTurnReusesBlocksAndTail) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(50));
  RunAll(scheduler);
  Tokens next = Prompt(50);
  for (const int32_t token : {100, 101, 102, 7, 8}) next.push_back(token);
  Submit(scheduler, 2, next);
  const auto plan = scheduler.Plan(0);
  EXPECT_THAT(plan->context_tokens, ElementsAre(53)) << "prompt and 3 of 4 outputs were written";
  EXPECT_EQ(plan->copies.size(), 1u);
  EXPECT_EQ(plan->copies[0][3], 5);
  EXPECT_THAT(Commit(scheduler, *plan).cached_tokens, ElementsAre(53));
}

TEST_F(SchedulerTest, AnIdenticalPromptComputesItsLastToken) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(32));
  RunAll(scheduler);
  Submit(scheduler, 2, Prompt(32));
  EXPECT_THAT(scheduler.Plan(0)->context_tokens, ElementsAre(31));
}

TEST_F(SchedulerTest, AnAbortedPrefillKeepsItsFinishedChunks) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(200));
  Step(scheduler);
  Step(scheduler);
  EXPECT_TRUE(scheduler.AbortRequest(RequestId(1), 0));
  EXPECT_EQ(scheduler.Stats().at("blocks_used"), 0);
  EXPECT_THAT(scheduler.TakeEnded().finish_reasons,
              ElementsAre(static_cast<uint8_t>(FinishReason::kAbort)));
  Submit(scheduler, 2, Prompt(200));
  EXPECT_THAT(scheduler.Plan(0)->context_tokens, ElementsAre(128));
}

TEST_F(SchedulerTest, ShortageRetractsTheYoungestOfTheLowestPriority) {
  SchedulerConfig config = Config();
  config.num_physical_blocks = 13;
  config.prefix_cache = false;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(60), {.max_new = 60});
  Submit(scheduler, 2, Prompt(60, 500), {.max_new = 60, .priority = 1});
  Submit(scheduler, 3, Prompt(60, 900), {.max_new = 60});
  while (scheduler.Stats().at("retractions") == 0) Step(scheduler);
  EXPECT_EQ(StateOf(scheduler, 3), "Retracted");
  EXPECT_EQ(StateOf(scheduler, 1), "Decoding");
  RunAll(scheduler);
  EXPECT_EQ(scheduler.Stats().at("output_tokens"), 180) << "retracted outputs are kept";
}

TEST_F(SchedulerTest, WhatCanNeverFitIsRefusedWithTheNumbers) {
  SchedulerConfig config = Config();
  config.num_physical_blocks = 5;
  Scheduler scheduler(config);
  try {
    Submit(scheduler, 1, Prompt(50), {.max_new = 30});
    FAIL();
  } catch (const CapacityError& error) {
    EXPECT_THAT(error.what(), HasSubstr("50 prompt tokens and 30 new tokens need 5 blocks"));
    EXPECT_FALSE(error.retry_after_s().has_value());
  }
  Submit(scheduler, 1, Prompt(50), {.max_new = 0});
  RunAll(scheduler);
  EXPECT_EQ(scheduler.Stats().at("output_tokens"), 14) << "what fits";
}

TEST_F(SchedulerTest, AFullQueueSaysWhenToRetry) {
  SchedulerConfig config = Config();
  config.max_waiting = 1;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(4));
  try {
    Submit(scheduler, 2, Prompt(4));
    FAIL();
  } catch (const CapacityError& error) {
    EXPECT_TRUE(error.retry_after_s().has_value());
  }
}

TEST_F(SchedulerTest, DeadlinesEndRequestsInAnyState) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(4), {.max_new = 50, .deadline_us = 100});
  Submit(scheduler, 2, Prompt(4), {.max_new = 50, .deadline_us = 200});
  EXPECT_EQ(scheduler.NextDeadlineUs(), 100);
  const auto plan = scheduler.Plan(50);
  Commit(scheduler, *plan, 150);
  EXPECT_THAT(scheduler.TakeEnded().request_ids, ElementsAre(1));
  EXPECT_EQ(scheduler.Plan(250), nullptr);
  EXPECT_THAT(scheduler.TakeEnded().finish_reasons,
              ElementsAre(static_cast<uint8_t>(FinishReason::kTimeout)));
  EXPECT_FALSE(scheduler.HasWork());
}

TEST_F(SchedulerTest, AFailedRowEndsAloneAndIsNotCached) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(20));
  Submit(scheduler, 2, Prompt(20, 500));
  const auto plan = scheduler.Plan(0);
  const bool failed[] = {true, false};
  const CommitResult result = scheduler.Commit(plan->step_id, Tokens{-1, 7}, failed, 0);
  EXPECT_THAT(result.finish_reasons, ElementsAre(5, 0));
  Submit(scheduler, 3, Prompt(20));
  EXPECT_THAT(scheduler.Plan(0)->context_tokens, ElementsAre(20, 0));
}

TEST_F(SchedulerTest, AResumedRequestCountsItsOutputs) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(10), {.max_new = 5, .outputs = {100, 101, 102}});
  const auto plan = scheduler.Plan(0);
  EXPECT_THAT(plan->output_index, ElementsAre(3));
  EXPECT_EQ(plan->num_tokens(), 13);
  Commit(scheduler, *plan);
  EXPECT_THAT(Step(scheduler).finish_reasons,
              ElementsAre(static_cast<uint8_t>(FinishReason::kLength)));
}

TEST_F(SchedulerTest, AWrongCommitChangesNothing) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(10));
  const auto plan = scheduler.Plan(0);
  EXPECT_THROW(scheduler.Commit(plan->step_id + 1, Tokens{1}, {}, 0), std::invalid_argument);
  EXPECT_THROW(scheduler.Commit(plan->step_id, Tokens{1, 2}, {}, 0), std::invalid_argument);
  EXPECT_THROW(scheduler.Commit(plan->step_id, Tokens{-1}, {}, 0), std::invalid_argument);
  Commit(scheduler, *plan);
  RunAll(scheduler);
}

TEST_F(SchedulerTest, SteadyDecodesEmitNoBlockUpdates) {
  Scheduler scheduler(Config());
  Submit(scheduler, 1, Prompt(17), {.max_new = 40});
  Step(scheduler);
  int num_updates = 0;
  for (int i = 0; i < 32; ++i) {
    const auto plan = scheduler.Plan(0);
    num_updates += static_cast<int>(plan->block_updates.size());
    Commit(scheduler, *plan);
  }
  EXPECT_EQ(num_updates, 2) << "one per new block";
}

TEST_F(SchedulerTest, ARequestThatFillsThePoolRunsAloneWhateverIsCached) {
  // Group a packs 4, group b 3: 12 block sets need 3 + 4 of the 7 physical blocks.
  SchedulerConfig config = Config();
  config.groups = {{.name = "a", .packing = 4}, {.name = "b", .packing = 3}};
  config.num_physical_blocks = 8;
  Scheduler scheduler(config);
  for (int32_t id = 1; id <= 40; ++id) {
    Submit(scheduler, id, Prompt(17 + id % 5 * 16, id % 4 * 100 + 1), {.max_new = 3});
    if (id % 4 > 0) continue;
    RunAll(scheduler);
    Submit(scheduler, 100 + id, Prompt(150 + id, id / 4 % 4 * 100 + 1), {.max_new = 42 - id});
    RunAll(scheduler);
  }
  EXPECT_GT(scheduler.Stats().at("cached_tokens"), 0);
}

// It counts as short by the blocks that are cached, but no state lies there: its first chunk, cut
// at a reuse point, leaves a long rest.
TEST_F(SchedulerTest, ARequestAdmittedAsShortHasOneRowInThePlan) {
  SchedulerConfig config = Config();
  config.groups.push_back({.name = "state", .kind = "state"});
  config.num_physical_blocks = 400;
  config.max_context_tokens = 4096;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(400));
  RunAll(scheduler);
  const Tokens cold = Prompt(2000, 5000), cold_points = {70};  // leaves budget in its second step
  scheduler.Submit(
      {.id = RequestId(2), .prompt = cold, .max_new_tokens = 1, .reuse_points = cold_points}, 0);
  Step(scheduler);
  Tokens warm = Prompt(390);
  warm.push_back(7);
  const Tokens warm_points = {6};
  scheduler.Submit(
      {.id = RequestId(3), .prompt = warm, .max_new_tokens = 1, .reuse_points = warm_points}, 0);
  const auto plan = scheduler.Plan(0);
  EXPECT_EQ(std::ranges::count(plan->request_ids, 3), 1);
  scheduler.CheckInvariants();
  Commit(scheduler, *plan);
  RunAll(scheduler);
}

}  // namespace
}  // namespace tokenspeed
