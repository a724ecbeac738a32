// An engine on a virtual clock: plans, lets a step-time model say how long the step takes, commits.
// Keeps the times of every request's tokens. Thread: any one.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "scheduler/scheduler.h"

namespace tokenspeed::test {

inline SchedulerConfig SmallConfig() {
  return {.block_tokens = 16,
          .groups = {{.name = "full"}},
          .num_physical_blocks = 129,
          .max_running = 8,
          .max_waiting = 64,
          .max_step_tokens = 64,
          .max_context_tokens = 1024};
}

inline std::vector<int32_t> Counting(int32_t size, int32_t first = 1) {
  std::vector<int32_t> tokens(size);
  for (int32_t i = 0; i < size; ++i) tokens[i] = first + i;
  return tokens;
}

// Qwen3-8B on one H200 (decode 5.22 / 5.63 / 6.18 / 9.43 ms at batch 1 / 8 / 32 / 128 with about
// 700 tokens each, prefill 40,000 tokens/s, long prompts slower), between the measured points.
inline double H200Us(const StepPlan& plan) {
  double rows = plan.num_rows(), prefill = 0, work = 0, context = 0;
  for (int32_t row = 0; row < plan.num_rows(); ++row) {
    const int32_t size = plan.query_start[row + 1] - plan.query_start[row];
    if (row < plan.num_decode_rows) {
      context += plan.context_tokens[row];
    } else {
      prefill += size;
      work += size * (plan.context_tokens[row] + size / 2.0);
    }
  }
  return 5200 + 14 * rows + 25 * prefill + 0.028 * context + 0.0008 * work;
}

class VirtualEngine {
 public:
  using StepUs = std::function<double(const StepPlan&)>;

  VirtualEngine(const SchedulerConfig& config, StepUs step_us)
      : scheduler(config), step_us_(std::move(step_us)) {}

  void Submit(Submission submission, const std::vector<int32_t>& prompt) {
    submission.prompt = prompt;
    scheduler.Submit(submission, now_us);
  }

  // Runs one step. Returns: its plan, nullptr when there is nothing to run.
  std::shared_ptr<const StepPlan> Step() {
    const auto plan = scheduler.Plan(now_us);
    if (plan == nullptr) return plan;
    now_us += static_cast<int64_t>(step_us_(*plan));
    std::vector<int32_t> tokens;
    for (const int32_t index : plan->output_index) tokens.push_back(index < 0 ? -1 : 100 + index);
    const CommitResult result = scheduler.Commit(plan->step_id, tokens, {}, now_us);
    for (size_t i = 0; i < result.request_ids.size(); ++i) {
      if (result.tokens[i] >= 0) token_us[result.request_ids[i]].push_back(now_us);
      if (result.finish_reasons[i] != 0) ended.push_back(result.request_ids[i]);
    }
    return plan;
  }

  Scheduler scheduler;
  int64_t now_us = 1'000'000;
  std::map<int64_t, std::vector<int64_t>> token_us;
  std::vector<int64_t> ended;

 private:
  StepUs step_us_;
};

}  // namespace tokenspeed::test
