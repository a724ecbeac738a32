// Cache truth: planted causes get their label and position, and the sums add up.
#include "scheduler/truth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/virtual_engine.h"

namespace tokenspeed::test {
namespace {

using Tokens = std::vector<int32_t>;
using Report = std::array<int32_t, 6>;

class TruthTest : public testing::Test {
 protected:
  // Runs a request alone. Returns: its report.
  Report Run(Submission submission, const Tokens& prompt) {
    submission.id = RequestId(++id_);
    submission.max_new_tokens = 2;
    submission.prompt = prompt;
    scheduler.Submit(submission, 0);
    return Finish(id_);
  }
  Report Finish(int64_t id) {
    Report found{};
    while (const auto plan = scheduler.Plan(0)) {
      Tokens tokens;
      for (const int32_t index : plan->output_index) tokens.push_back(index < 0 ? -1 : 100 + index);
      const CommitResult result = scheduler.Commit(plan->step_id, tokens, {}, 0);
      scheduler.CheckInvariants();
      for (const Report& report : result.reports) {
        if (result.request_ids[report[0]] == id) found = report;
      }
    }
    return found;
  }
  static MatchEnd End(const Report& report) { return static_cast<MatchEnd>(report[5]); }

  Scheduler scheduler{SmallConfig()};
  int64_t id_ = 0;
};

TEST_F(TruthTest, NothingWasStored) {
  const Report report = Run({}, Counting(50));
  EXPECT_EQ(End(report), MatchEnd::kNeverStored);
  EXPECT_THAT(report,
              testing::ElementsAre(0, 0, 50, 0, 0, static_cast<int>(MatchEnd::kNeverStored)));
}

TEST_F(TruthTest, AllThatCanBeReusedWas) {
  Run({}, Counting(50));
  const Report report = Run({}, Counting(50));
  EXPECT_EQ(End(report), MatchEnd::kComplete);
  EXPECT_EQ(report[1], 49);
  EXPECT_EQ(report[2], 1);
  EXPECT_EQ(report[4], 49);
}

TEST_F(TruthTest, ContentDiffersAtAPosition) {
  Run({.session = 5}, Counting(80));
  Tokens changed = Counting(80);
  changed[37] = 9999;
  const Report report = Run({.session = 5}, changed);
  EXPECT_EQ(End(report), MatchEnd::kContent);
  EXPECT_EQ(report[4], 37);
}

TEST_F(TruthTest, AnotherSaltAndAnotherTenant) {
  Run({.session = 5}, Counting(80));
  const Report salted = Run({.salt = "x", .session = 5}, Counting(80));
  EXPECT_EQ(End(salted), MatchEnd::kSalt);
  const Report moved = Run({.salt = "y", .session = 5, .tenant = 3}, Counting(80));
  EXPECT_EQ(End(moved), MatchEnd::kTenantOrAdapter);
  const Report back = Run({.salt = "y", .session = 5}, Counting(80));
  EXPECT_EQ(End(back), MatchEnd::kTenantOrAdapter) << "the same salt is another namespace";
}

TEST_F(TruthTest, MatchingWasOff) {
  Run({}, Counting(80));
  EXPECT_EQ(End(Run({.match_prefix = false}, Counting(80))), MatchEnd::kDisabled);
}

TEST_F(TruthTest, AnotherRequestWasComputingIt) {
  const Tokens prompt = Counting(305);  // what can be reused is whole blocks
  scheduler.Submit({.id = RequestId(100), .prompt = prompt, .max_new_tokens = 2}, 0);
  scheduler.Submit({.id = RequestId(101), .prompt = prompt, .max_new_tokens = 2, .priority = 1}, 0);
  // The one of higher priority runs first; the other one waits for it and matches in the end.
  EXPECT_EQ(End(Finish(100)), MatchEnd::kComplete);
  EXPECT_EQ(scheduler.Stats()["match_never_stored"], 1);
}

TEST_F(TruthTest, SessionsAddUpToTheCounters) {
  for (int64_t session = 0; session < 4; ++session) {
    for (int32_t turn = 1; turn < 4; ++turn) Run({.session = session}, Counting(40 * turn));
  }
  SessionTotals sum;
  for (int64_t session = 0; session < 4; ++session) sum.Add(scheduler.TotalsOf(session));
  const auto stats = scheduler.Stats();
  EXPECT_EQ(sum.turns, 12);
  EXPECT_EQ(sum.prompt, stats.at("prompt_tokens"));
  EXPECT_EQ(sum.cached, stats.at("cached_tokens"));
  EXPECT_EQ(sum.created, stats.at("created_tokens"));
  EXPECT_EQ(sum.output, stats.at("output_tokens"));
  EXPECT_EQ(sum.cached + sum.created + sum.recomputed, sum.prompt);
}

TEST_F(TruthTest, ItWasEvicted) {
  Run({}, Counting(100));
  for (int32_t i = 1; i < 4; ++i) Run({}, Counting(900, 10'000 * i));
  const Report report = Run({}, Counting(100));
  EXPECT_THAT(report, testing::ElementsAre(0, 0, 4, 96, 0, static_cast<int>(MatchEnd::kEvicted)));
}

TEST(TruthOfStateTest, NoSnapshotLiesWhereTheTokensPart) {
  SchedulerConfig config = SmallConfig();
  config.groups.push_back({.name = "state", .kind = "state"});
  VirtualEngine engine(config, [](const StepPlan&) { return 1000.0; });
  engine.Submit({.id = RequestId(1), .max_new_tokens = 2}, Counting(80));
  while (engine.Step() != nullptr) engine.scheduler.CheckInvariants();
  Tokens other = Counting(40);
  for (int32_t i = 0; i < 40; ++i) other.push_back(5000 + i);
  engine.Submit({.id = RequestId(2), .max_new_tokens = 2}, other);
  while (engine.Step() != nullptr) engine.scheduler.CheckInvariants();
  EXPECT_EQ(engine.scheduler.Stats()["match_no_snapshot"], 1);
}

struct Case {
  MatchEvidence evidence;
  MatchEnd end;
  int32_t position;
};

TEST(ExplainTest, EachCauseHasItsLabel) {
  using Turn = MatchEvidence::Turn;
  const MatchEvidence base{.matched = 32, .known = 32, .matchable = 100};
  const auto with = [&base](auto change) {
    MatchEvidence evidence = base;
    change(evidence);
    return evidence;
  };
  const Case cases[] = {
      {with([](auto& e) { e.may_match = false; }), MatchEnd::kDisabled, 0},
      {with([](auto& e) { e.matched = e.known = 100; }), MatchEnd::kComplete, 100},
      {with([](auto& e) { e.has_no_state = true, e.known = 100; }), MatchEnd::kNoSnapshot, 32},
      {with([](auto& e) { e.is_computed = true; }), MatchEnd::kComputing, 32},
      {with([](auto& e) { e.is_evicted = true; }), MatchEnd::kEvicted, 32},
      {with([](auto& e) { e.previous = Turn{90, false, true}; }), MatchEnd::kSalt, 32},
      {with([](auto& e) { e.previous = Turn{90, false, false}; }), MatchEnd::kTenantOrAdapter, 32},
      {with([](auto& e) { e.previous = Turn{0, true, false}; }), MatchEnd::kTenantOrAdapter, 32},
      {with([](auto& e) { e.previous = Turn{90, true, true}; }), MatchEnd::kNeverStored, 32},
      {with([](auto& e) { e.previous = Turn{32, true, true}; }), MatchEnd::kContent, 32},
      {with([](auto& e) { e.has_other_content = true, e.known = 40; }), MatchEnd::kContent, 40},
      {base, MatchEnd::kNeverStored, 32},
  };
  for (const Case& item : cases) {
    EXPECT_EQ(Explain(item.evidence), std::pair(item.end, item.position));
  }
}

}  // namespace
}  // namespace tokenspeed::test
