// A decode row to which nothing happens is committed by its line alone. Whoever says how many
// drafts of each row were accepted, none, goes the whole way: plans and results are the same.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "support/virtual_engine.h"

namespace tokenspeed::test {
namespace {

struct Case {
  int32_t depth;
  bool has_window;
  bool prefix_cache;
};

class QuietRowsTest : public testing::TestWithParam<Case> {
 protected:
  // 24 or 40 blocks for 8 requests: some are retracted and start again beside those who decode.
  static SchedulerConfig Config() {
    SchedulerConfig config = SmallConfig();
    config.depth = GetParam().depth;
    config.prefix_cache = GetParam().prefix_cache;
    config.num_physical_blocks = 25;
    if (GetParam().has_window) {
      config.groups.push_back({.name = "w", .kind = "window", .packing = 1, .window = 40});
      config.num_physical_blocks = 41;
    }
    return config;
  }

  void Submit() {
    const std::vector<int32_t> prompt = Counting(Pick(1, 60), Pick(0, 2) * 1000);
    const std::vector<int32_t> stops = {17, 17 + 64, 300};
    const Submission submission{.id = RequestId(++num_requests_),
                                .prompt = prompt,
                                .max_new_tokens = Pick(1, 90),
                                .min_new_tokens = Pick(0, 20),
                                .stop_ids = stops};
    for (Scheduler* scheduler : {&lines_, &whole_}) scheduler->Submit(submission, now_us_);
  }

  void Plan() {
    const auto plan = lines_.Plan(now_us_), expected = whole_.Plan(now_us_);
    ASSERT_EQ(plan == nullptr, expected == nullptr);
    if (plan == nullptr) return;
    ASSERT_EQ(DigestOf(*plan), DigestOf(*expected));
    ASSERT_EQ(plan->query_start.size(), plan->slots.size() + 1);
    ASSERT_EQ(plan->query_start.back(), plan->num_tokens());
    in_flight_.push_back(plan);
  }

  void Commit() {
    if (in_flight_.empty()) return;
    const auto plan = in_flight_.front();
    in_flight_.pop_front();
    const std::vector<int32_t> accepted(plan->num_rows(), 0);
    std::vector<int32_t> tokens;
    for (const int32_t index : plan->output_index) {
      tokens.push_back(index < 0 ? -1 : 81 + 64 * Pick(0, 2) + Pick(0, 30) * (Pick(0, 9) > 0));
    }
    CommitResult result, expected;
    lines_.Commit(plan->step_id, {tokens, {}, {}}, now_us_, result);
    whole_.Commit(plan->step_id, {tokens, accepted, {}}, now_us_, expected);
    ASSERT_EQ(result.request_ids, expected.request_ids);
    ASSERT_EQ(result.tokens, expected.tokens);
    ASSERT_EQ(result.num_tokens, expected.num_tokens);
    ASSERT_EQ(result.finish_reasons, expected.finish_reasons);
    ASSERT_EQ(result.cached_tokens, expected.cached_tokens);
    ASSERT_EQ(result.rows, expected.rows);
    ASSERT_EQ(result.reports, expected.reports);
    lines_.CheckInvariants();
    ASSERT_EQ(lines_.Stats(), whole_.Stats());
  }

  int32_t Pick(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(rng_() % static_cast<uint32_t>(high - low + 1));
  }

  std::mt19937 rng_{20261130};
  Scheduler lines_{Config()}, whole_{Config()};
  std::deque<std::shared_ptr<const StepPlan>> in_flight_;
  int64_t num_requests_ = 0, now_us_ = 1;
};

TEST_P(QuietRowsTest, AreCommittedAsTheWholeWayCommitsThem) {
  for (int round = 0; round < 3000 && !HasFatalFailure(); ++round, ++now_us_) {
    if (Pick(0, 3) == 0 && lines_.Stats()["waiting"] < 20) Submit();
    if (Pick(0, 99) == 0) {
      const RequestId id(Pick(1, 1 + static_cast<int32_t>(num_requests_)));
      ASSERT_EQ(lines_.AbortRequest(id, now_us_), whole_.AbortRequest(id, now_us_));
    }
    Plan();
    if (GetParam().depth == 0 || in_flight_.size() == 2 || Pick(0, 3) == 0) Commit();
  }
  auto stats = lines_.Stats();
  EXPECT_GT(stats["retractions"], 0);
  EXPECT_GT(stats["finished"], 100);
  EXPECT_GT(stats["output_tokens"], 3000);
}

INSTANTIATE_TEST_SUITE_P(Layouts, QuietRowsTest,
                         testing::Values(Case{0, false, true}, Case{1, false, true},
                                         Case{0, true, true}, Case{1, true, true},
                                         Case{0, false, false}));

}  // namespace
}  // namespace tokenspeed::test
