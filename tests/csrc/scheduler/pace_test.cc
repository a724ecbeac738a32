// Bounded waiting, the latency floor and the queue's limits, on a virtual clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "support/virtual_engine.h"

namespace tokenspeed::test {
namespace {

using Tokens = std::vector<int32_t>;

SchedulerConfig LargeConfig() {
  SchedulerConfig config = SmallConfig();
  config.block_tokens = 128;
  config.num_physical_blocks = 8000;
  config.max_running = 64;
  config.max_step_tokens = 8192;
  config.max_context_tokens = 400'000;
  return config;
}

int32_t RowOf(const StepPlan& plan, int64_t id) {
  const auto found = std::ranges::find(plan.request_ids, id);
  return found == plan.request_ids.end() ? -1
                                         : static_cast<int32_t>(found - plan.request_ids.begin());
}

TEST(BoundedWaitingTest, AWarmShortTurnStartsWhileAColdLongPrefillRuns) {
  VirtualEngine engine(LargeConfig(), H200Us);
  const Tokens history = Counting(60'000, 1'000'000);
  engine.Submit({.id = RequestId(1), .max_new_tokens = 1, .session = 1}, history);
  while (engine.Step() != nullptr) continue;
  engine.Submit({.id = RequestId(2), .max_new_tokens = 1}, Counting(325'000));
  for (int i = 0; i < 5; ++i) engine.Step();
  int64_t id = 3;
  // Turn after turn comes: each starts within 3 steps, and the long one goes on.
  for (int turn = 0; turn < 12; ++turn, ++id) {
    Tokens prompt = history;
    for (int32_t i = 0; i < 3000; ++i) prompt.push_back(2'000'000 + turn * 3000 + i);
    engine.Submit({.id = RequestId(id), .max_new_tokens = 2}, prompt);
    int waited = 0;
    while (RowOf(*engine.Step(), id) < 0) ++waited;
    EXPECT_LT(waited, 3) << "turn " << turn;
  }
  int steps = 0;
  while (!std::ranges::count(engine.ended, 2)) {
    ASSERT_NE(engine.Step(), nullptr);
    ASSERT_LT(++steps, 60);
  }
  EXPECT_EQ(engine.scheduler.Stats()["retractions"], 0) << "displaced, not retracted";
  engine.scheduler.CheckInvariants();
}

TEST(BoundedWaitingTest, ALongPrefillIsDisplacedForThreeStepsInARowAtMost) {
  SchedulerConfig config = LargeConfig();
  config.max_step_tokens = 512;
  VirtualEngine engine(config, H200Us);
  engine.Submit({.id = RequestId(1), .max_new_tokens = 1}, Counting(50'000));
  engine.Step();
  int displaced = 0, longest = 0, chunks = 0;
  for (int64_t id = 2; id < 60; ++id) {
    engine.Submit({.id = RequestId(id), .max_new_tokens = 1},
                  Counting(512, static_cast<int32_t>(id) * 100'000));
    const auto plan = engine.Step();
    const bool has_chunk = RowOf(*plan, 1) >= 0;
    chunks += has_chunk;
    displaced = has_chunk ? 0 : displaced + 1;
    longest = std::max(longest, displaced);
  }
  EXPECT_EQ(longest, 3);
  EXPECT_GE(chunks, 58 / 4);
}

TEST(BoundedWaitingTest, AShortTurnOfLowerPriorityDisplacesNobody) {
  VirtualEngine engine(LargeConfig(), H200Us);
  engine.Submit({.id = RequestId(1), .max_new_tokens = 1, .priority = 1}, Counting(50'000));
  engine.Step();
  engine.Submit({.id = RequestId(2), .max_new_tokens = 1}, Counting(100, 900'000));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(RowOf(*engine.Step(), 2), -1);
}

TEST(BoundedWaitingTest, ADecodingStreamGetsATokenInEveryStepOfOthersPrefills) {
  VirtualEngine engine(LargeConfig(), H200Us);
  engine.Submit({.id = RequestId(1), .max_new_tokens = 200}, Counting(100));
  engine.Step();
  for (int64_t id = 2; id < 6; ++id) {
    engine.Submit({.id = RequestId(id), .max_new_tokens = 5},
                  Counting(60'000, static_cast<int32_t>(id) * 1'000'000));
  }
  for (int i = 0; i < 40; ++i) EXPECT_EQ(RowOf(*engine.Step(), 1), 0);
}

// Least tokens in any window of one second inside a stream's life; -1: it is shorter.
int64_t FewestInASecond(const std::vector<int64_t>& times) {
  int64_t fewest = -1;
  for (size_t first = 0; first < times.size() && times[first] + 1'000'000 <= times.back();
       ++first) {
    const auto end = std::ranges::upper_bound(times, times[first] + 1'000'000);
    const int64_t count = end - times.begin() - static_cast<int64_t>(first) - 1;
    if (fewest < 0 || count < fewest) fewest = count;
  }
  return fewest;
}

struct FloorRun {
  int64_t fewest = -1;
  int64_t prefilled = 0;
  double seconds = 0;
  double decode_seconds = 0;
  int64_t num_violated = 0;
};

// A few streams decode for long, and long prompts queue without end.
FloorRun RunFloor(double min_tps, int num_streams, double max_seconds) {
  SchedulerConfig config = LargeConfig();
  config.min_tps_per_user = min_tps;
  config.max_waiting = 400;
  VirtualEngine engine(config, H200Us);
  for (int64_t id = 1; id <= num_streams; ++id) {
    engine.Submit({.id = RequestId(id), .max_new_tokens = 20'000},
                  Counting(2000, static_cast<int32_t>(id) * 10'000));
  }
  FloorRun run;
  for (int i = 0; i < 60; ++i) engine.Step();
  const int64_t start_us = engine.now_us;
  for (int64_t id = 100; id < 300; ++id) {
    engine.Submit({.id = RequestId(id), .max_new_tokens = 1},
                  Counting(20'000, static_cast<int32_t>(id) * 1'000'000));
  }
  while (engine.now_us < start_us + static_cast<int64_t>(max_seconds * 1e6)) {
    const int64_t before_us = engine.now_us;
    const auto plan = engine.Step();
    StepPlan decodes = *plan;
    decodes.slots.resize(plan->num_decode_rows);
    run.prefilled += plan->num_tokens() - plan->num_decode_rows;
    run.decode_seconds += std::min(H200Us(decodes), double(engine.now_us - before_us)) / 1e6;
  }
  run.seconds = static_cast<double>(engine.now_us - start_us) / 1e6;
  for (int64_t id = 1; id <= num_streams; ++id) {
    std::vector<int64_t> times = engine.token_us[id];
    std::erase_if(times, [start_us](int64_t time) { return time < start_us; });
    const int64_t fewest = FewestInASecond(times);
    if (run.fewest < 0 || fewest < run.fewest) run.fewest = fewest;
  }
  run.num_violated = engine.scheduler.Stats()["tps_floor_violated"];
  return run;
}

TEST(FloorTest, NoStreamFallsBelowRAndPrefillGetsTheSlack) {
  for (const int64_t floor : {30, 60, 100}) {
    const FloorRun run = RunFloor(static_cast<double>(floor), 8, 20);
    EXPECT_GE(run.fewest, floor);
    EXPECT_EQ(run.num_violated, 0);
    // Steps that only keep the floor would take R decode steps a second; the rest is slack.
    const double decode_step = run.decode_seconds / run.seconds;
    EXPECT_GT(run.prefilled, 0);
    const double slack_used = 1 - decode_step;
    const double slack = 1 - static_cast<double>(floor) * 5.9e-3;
    EXPECT_GE(slack_used, 0.9 * slack) << "floor " << floor;
  }
}

TEST(FloorTest, WithoutAFloorPrefillTakesItsChunks) {
  const FloorRun run = RunFloor(0, 8, 20);
  EXPECT_LT(run.fewest, 30);
}

TEST(FloorTest, WhoOutgrowsItIsReportedAndNobodyIsAdmitted) {
  SchedulerConfig config = LargeConfig();
  config.min_tps_per_user = 150;
  VirtualEngine engine(config, [](const StepPlan& plan) { return H200Us(plan) + 3000; });
  engine.Submit({.id = RequestId(1), .max_new_tokens = 1000}, Counting(2000));
  for (int i = 0; i < 100; ++i) engine.Step();
  EXPECT_GT(engine.scheduler.Stats()["tps_floor_violated"], 0);
  engine.Submit({.id = RequestId(2), .max_new_tokens = 1}, Counting(100, 500'000));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(engine.Step()->num_rows(), 1);
  EXPECT_EQ(engine.scheduler.Stats()["waiting"], 1);
}

TEST(StepTimeTest, LearnsTheModel) {
  StepTime model;
  uint64_t state = 1;
  const auto pick = [&state](uint64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int64_t>((state >> 33) % n);
  };
  const auto truth = [](const StepLoad& load) {
    return 3000.0 + 20.0 * double(load.rows) + 30.0 * double(load.prefill_tokens) +
           0.05 * double(load.context_tokens) + 0.001 * load.prefill_work;
  };
  const auto load = [&pick] {
    const int64_t tokens = pick(4096);
    return StepLoad{pick(128), tokens, pick(1 << 20), double(tokens) * double(pick(100'000))};
  };
  for (int i = 0; i < 300; ++i) {
    const StepLoad step = load();
    model.Observe(step, truth(step));
  }
  for (int i = 0; i < 50; ++i) {
    const StepLoad step = load();
    EXPECT_NEAR(model.PredictUs(step), truth(step), 0.01 * truth(step));
  }
}

TEST(StepTimeTest, StaysSoundOverALongRun) {
  StepTime model;
  StepLoad load{.rows = 64, .context_tokens = 64 * 700};
  for (int i = 0; i < 2'000'000; ++i) {
    load.context_tokens += i % 1000 == 999 ? -64 * 999 : 64;
    model.Observe(load, 6000 + 0.02 * static_cast<double>(load.context_tokens) + i % 7);
  }
  EXPECT_NEAR(model.PredictUs(load), 6000 + 0.02 * 64 * 700, 60);
  EXPECT_GE(model.UpperUs(load), model.PredictUs(load));
  load.prefill_tokens = 512;  // never seen: not known, but no nonsense either
  EXPECT_TRUE(std::isfinite(model.UpperUs(load)));
  EXPECT_GE(model.UpperUs(load), model.PredictUs(load));
}

TEST(FloorTest, AFractionOfATokenIsOneMoreInEverySecond) {
  Floor floor(1.5);
  EXPECT_EQ(floor.min_tps(), 2);
  const StepLoad load{.rows = 1};
  int64_t now_us = 0;
  for (int i = 0; i < 60; ++i) {
    floor.Planned(load, now_us, true);
    floor.Committed(now_us += 600'000);
  }
  // Two tokens a second need steps of half a second, whatever prefill gets: it has no slack.
  EXPECT_TRUE(floor.IsOutgrown(load));
  EXPECT_FALSE(floor.Keeps(load));
}

TEST(QueueLimitTest, AFullQueueSaysWhenToComeBack) {
  SchedulerConfig config = SmallConfig();
  config.max_running = 1;
  config.max_waiting = 20;
  VirtualEngine engine(config, [](const StepPlan&) { return 2e6; });
  for (int64_t id = 1; id <= 20; ++id) {
    engine.Submit({.id = RequestId(id), .max_new_tokens = 1}, {static_cast<int32_t>(id)});
  }
  for (int i = 0; i < 10; ++i) engine.Step();
  for (int64_t id = 21; id <= 30; ++id) {
    engine.Submit({.id = RequestId(id), .max_new_tokens = 1}, {static_cast<int32_t>(id)});
  }
  try {
    engine.Submit({.id = RequestId(31), .max_new_tokens = 1}, {1});
    FAIL();
  } catch (const CapacityError& error) {
    EXPECT_EQ(error.retry_after_s(), 2 * 20 / 4) << "a quarter of 20 at one per 2 s";
  }
}

TEST(QueueLimitTest, WhoWaitsTooLongTimesOutUnlessItRan) {
  SchedulerConfig config = SmallConfig();
  config.max_running = 1;
  VirtualEngine engine(config, [](const StepPlan&) { return 1e6; });
  engine.Submit({.id = RequestId(1), .max_new_tokens = 10, .max_queue_us = 2'000'000}, {1});
  engine.Submit({.id = RequestId(2), .max_new_tokens = 1, .max_queue_us = 3'500'000}, {2});
  EXPECT_EQ(engine.scheduler.NextDeadlineUs(), 3'000'000);
  for (int i = 0; i < 6; ++i) engine.Step();
  const CommitResult ended = engine.scheduler.TakeEnded();
  EXPECT_THAT(ended.request_ids, testing::ElementsAre(2));
  EXPECT_THAT(ended.finish_reasons,
              testing::ElementsAre(static_cast<uint8_t>(FinishReason::kTimeout)));
  engine.scheduler.CheckInvariants();
  EXPECT_TRUE(engine.ended.empty());
}

TEST(ParkingTest, WhoNeedsABlockThatIsBeingComputedWaitsAndOthersPass) {
  SchedulerConfig config = SmallConfig();
  VirtualEngine engine(config, [](const StepPlan&) { return 1000.0; });
  Tokens second = Counting(200);
  second.push_back(7);
  engine.Submit({.id = RequestId(1), .max_new_tokens = 1}, Counting(200));
  engine.Submit({.id = RequestId(2), .max_new_tokens = 1}, second);
  engine.Submit({.id = RequestId(3), .max_new_tokens = 1}, Counting(20, 5000));
  EXPECT_THAT(engine.Step()->request_ids, testing::ElementsAre(1));
  bool passed = false;
  int64_t computed = 0;
  while (const auto plan = engine.Step()) {
    engine.scheduler.CheckInvariants();
    passed |= RowOf(*plan, 3) >= 0 && RowOf(*plan, 2) < 0 && !std::ranges::count(engine.ended, 2);
    const int32_t row = RowOf(*plan, 2);
    if (row >= 0) computed += plan->query_start[row + 1] - plan->query_start[row];
  }
  EXPECT_TRUE(passed);
  EXPECT_LE(computed, 201 - 192) << "all full blocks of the first came from it";
}

TEST(ParkingTest, TheOwnersEndFreesWhoWaited) {
  SchedulerConfig config = SmallConfig();
  config.max_step_tokens = 100;
  VirtualEngine engine(config, [](const StepPlan&) { return 1000.0; });
  engine.Submit({.id = RequestId(1), .max_new_tokens = 50}, Counting(250));
  engine.Submit({.id = RequestId(2), .max_new_tokens = 1}, Counting(251));
  engine.Step();
  engine.Step();
  const auto plan = engine.scheduler.Plan(engine.now_us);
  EXPECT_EQ(engine.scheduler.Stats()["parked"], 1);
  engine.scheduler.AbortRequest(RequestId(1), engine.now_us);
  engine.scheduler.Commit(plan->step_id, Tokens(1, 5), {}, engine.now_us);
  while (engine.Step() != nullptr) engine.scheduler.CheckInvariants();
  EXPECT_THAT(engine.ended, testing::ElementsAre(2));
}

}  // namespace
}  // namespace tokenspeed::test
