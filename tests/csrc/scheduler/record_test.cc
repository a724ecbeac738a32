// The digest of a plan sees everything in it that the execution plane does.
#include "scheduler/record.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace tokenspeed {
namespace {

TEST(DigestTest, EveryArrayOfAPlanCounts) {
  const std::vector<std::function<void(StepPlan&)>> changes = {
      [](StepPlan&) {},
      [](StepPlan& plan) { plan.step_id = 2; },
      [](StepPlan& plan) { plan.num_decode_rows = 1; },
      [](StepPlan& plan) { plan.num_write_rows = 2; },
      [](StepPlan& plan) { plan.request_ids = {1}; },
      [](StepPlan& plan) { plan.slots = {1}; },
      [](StepPlan& plan) { plan.query_start = {1}; },
      [](StepPlan& plan) { plan.context_tokens = {1}; },
      [](StepPlan& plan) { plan.output_index = {1}; },
      [](StepPlan& plan) { plan.num_drafts = {1}; },
      [](StepPlan& plan) { plan.token_ids = {1}; },
      [](StepPlan& plan) { plan.admitted = {{0, 1}}; },
      [](StepPlan& plan) { plan.block_updates = {{0, 0, 0, 1}}; },
      [](StepPlan& plan) { plan.copies = {{0, 0, 0, 1}}; },
      [](StepPlan& plan) { plan.state_rows = {1}; },
      [](StepPlan& plan) { plan.tier_rows.transfers = {{0, 0, 0, 0, 0, 1}}; },
      [](StepPlan& plan) { plan.tier_rows.store_moves = {{0, 0, 0, 1}}; },
      [](StepPlan& plan) { plan.tier_rows.store_keys = {{1}}; },
      [](StepPlan& plan) { plan.tier_rows.store_tokens = {1}; },
  };
  std::set<uint64_t> digests;
  for (const auto& change : changes) {
    StepPlan plan;
    plan.Clear();
    change(plan);
    digests.insert(DigestOf(plan));
  }
  EXPECT_EQ(digests.size(), changes.size());
}

}  // namespace
}  // namespace tokenspeed
