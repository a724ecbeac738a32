// What a session lets the scheduler skip changes no plan: turns by delta (known sets, kept keys)
// against the same prompts sent whole by nobody, in a pool that evicts. And the executor's block
// tables, from the updates of the plans, are those that the requests hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support/virtual_engine.h"

namespace tokenspeed::test {
namespace {

using Tokens = std::vector<int32_t>;

class ShortcutsTest : public testing::TestWithParam<int32_t> {
 protected:
  static constexpr int kNumSessions = 6;

  // One turn of a session, in both schedulers.
  void Submit(int session) {
    Tokens& known = tokens_[session];
    const size_t first = known.size();
    if (first > 500) known.clear();
    const int32_t salt = known.empty() ? static_cast<int32_t>(rng_() % 3) * 1000 : session * 1000;
    for (const int32_t token : Counting(1 + static_cast<int32_t>(rng_() % 70), salt + 5000)) {
      known.push_back(token);
    }
    Submission submission{.id = RequestId(++num_requests_), .max_new_tokens = 4};
    plain_.Submit(submission, known);
    submission.session = session + 1;
    const auto base = delta_.scheduler.SessionBase(session + 1);
    if (base && first <= 500 && first == static_cast<size_t>(base->tokens)) {
      submission.prompt = std::span<const int32_t>(known).subspan(first);
      delta_.scheduler.SubmitTurn(submission, *base, delta_.now_us);
      ++num_deltas_;
    } else {
      delta_.Submit(submission, known);
    }
    for (int32_t i = 0; i < 4; ++i) known.push_back(100 + i);  // as the virtual engine answers
  }

  // Steps both to the end, plan by plan.
  void RunAll() {
    while (true) {
      const auto expected = plain_.scheduler.Plan(plain_.now_us);
      const auto plan = delta_.scheduler.Plan(delta_.now_us);
      ASSERT_EQ(plan == nullptr, expected == nullptr);
      if (plan == nullptr) return;
      ASSERT_EQ(plan->request_ids, expected->request_ids);
      ASSERT_EQ(plan->context_tokens, expected->context_tokens);
      ASSERT_EQ(plan->token_ids, expected->token_ids);
      ASSERT_EQ(plan->block_updates, expected->block_updates);
      ASSERT_EQ(plan->copies, expected->copies);
      CheckTables(*plan);
      for (VirtualEngine* engine : {&plain_, &delta_}) {
        Tokens sampled;
        for (const int32_t i : plan->output_index) sampled.push_back(i < 0 ? -1 : 100 + i);
        engine->scheduler.Commit(plan->step_id, sampled, {}, engine->now_us += 1000);
        engine->scheduler.CheckInvariants();
      }
    }
  }

  void CheckTables(const StepPlan& plan) {
    for (const auto& [slot, group, index, block] : plan.block_updates) {
      tables_[{slot, group, index}] = block;
    }
    for (const RequestView& view : delta_.scheduler.Requests()) {
      if (std::ranges::count(plan.request_ids, view.id.value) == 0) continue;
      for (size_t group = 0; group < view.blocks.size(); ++group) {
        for (size_t i = 0; i < view.blocks[group].size(); ++i) {
          if (view.blocks[group][i] == 0) continue;  // before a window
          const std::array<int32_t, 3> place{view.slot, static_cast<int32_t>(group),
                                             static_cast<int32_t>(i)};
          ASSERT_EQ(tables_[place], view.blocks[group][i]);
        }
      }
    }
  }

  static SchedulerConfig Config(int32_t num_groups) {
    SchedulerConfig config = SmallConfig();
    config.groups.resize(num_groups, {.name = "other", .packing = 2});
    config.num_physical_blocks = num_groups == 1 ? 97 : 145;
    return config;
  }

  std::mt19937 rng_{static_cast<uint32_t>(20260 + GetParam())};
  std::array<Tokens, kNumSessions> tokens_;
  std::map<std::array<int32_t, 3>, int32_t> tables_;  // [slot, group, index]
  VirtualEngine plain_{Config(GetParam()), [](const StepPlan&) { return 1000.0; }};
  VirtualEngine delta_{Config(GetParam()), [](const StepPlan&) { return 1000.0; }};
  int64_t num_requests_ = 0, num_deltas_ = 0;
};

TEST_P(ShortcutsTest, DeltaTurnsPlanWhatWholePromptsPlan) {
  for (int round = 0; round < 150 && !HasFatalFailure(); ++round) {
    const int first = static_cast<int>(rng_() % kNumSessions);
    Submit(first);
    if (rng_() % 2 == 0) Submit((first + 1) % kNumSessions);
    RunAll();
  }
  EXPECT_GT(num_deltas_, 100);
  EXPECT_GT(delta_.scheduler.Stats().at("evictions"), 100);
}

INSTANTIATE_TEST_SUITE_P(OneAndTwoGroups, ShortcutsTest, testing::Values(1, 2));

}  // namespace
}  // namespace tokenspeed::test
