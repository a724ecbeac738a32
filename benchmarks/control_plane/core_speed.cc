// CPU time of the scheduler without Python: the driver's W1, W2, W2d, W3 and W4 on the C++ core,
// for profiles. "Far" figures use and unmap other memory before each call, as a process that does
// other work between two of them does: 1 MB in W1 and W4, 48 MB between turns. Build and run:
//   c++ -O3 -g -std=c++20 -Icsrc -o build/core_speed benchmarks/control_plane/core_speed.cc
//       csrc/base/*.cc csrc/fsm/*.cc csrc/kv/*.cc csrc/scheduler/*.cc     (one line)
//   build/core_speed [W1 W2 W2d W3 W4 ...]
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <string_view>
#include <vector>

#include "scheduler/scheduler.h"

namespace tokenspeed {
namespace {

using Tokens = std::vector<int32_t>;

double NowUs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

template <class Call>
double Time(const Call& call) {
  const double start_us = NowUs();
  call();
  return NowUs() - start_us;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

Tokens Random(std::mt19937& rng, size_t size) {
  Tokens tokens(size);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 150'000);
  return tokens;
}

SchedulerConfig Config(int64_t pool_tokens, int32_t max_context, int32_t max_running = 8) {
  return {.block_tokens = 128,
          .groups = {{.name = "full"}},
          .num_physical_blocks = static_cast<int32_t>(pool_tokens / 128 + 1),
          .max_running = max_running,
          .max_waiting = std::max(64, max_running),
          .max_step_tokens = 8256,
          .max_context_tokens = max_context};
}

class Engine {
 public:
  Engine(int64_t pool_tokens, int32_t max_context) : scheduler(Config(pool_tokens, max_context)) {}

  // Runs what was submitted to its end; adds up the steps that prefill. Returns: the first plan.
  double Run(double& prefill_us) {
    double first_us = -1;
    while (scheduler.HasWork()) {
      const double plan_us = Time([&] { scheduler.Plan(now_us, plan_); });
      if (first_us < 0) first_us = plan_us;
      const bool is_prefill = plan_->num_decode_rows == 0;
      const int32_t token = plan_->output_index[0] < 0 ? -1 : 9;
      const StepOutcome outcome{.tokens = {&token, 1}, .accepted = {}, .failed = {}};
      const double commit_us =
          Time([&] { scheduler.Commit(plan_->step_id, outcome, now_us, result_); });
      if (is_prefill) prefill_us += plan_us + commit_us;
    }
    return first_us;
  }

  Scheduler scheduler;
  int64_t now_us = 1;

 private:
  std::shared_ptr<StepPlan> plan_ = std::make_shared<StepPlan>();
  CommitResult result_;
};

constexpr size_t kOtherBytes = 1 << 20;

void WalkFar(bool is_far, size_t num_bytes = 48 << 20) {
  if (!is_far) return;
  static std::vector<uint8_t> other(48 << 20);
  for (size_t i = 0; i < num_bytes; i += 64) ++other[i];
  // Whoever unmaps memory makes the processor forget where pages lie.
  void* memory =
      mmap(nullptr, kOtherBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  for (size_t i = 0; i < kOtherBytes; i += 4096) static_cast<volatile char*>(memory)[i] = 1;
  munmap(memory, kOtherBytes);
}

// W1: so many requests of 8k tokens decode, one token each a step.
void Decodes(int32_t num_requests, bool is_far) {
  constexpr int32_t kContext = 8192, kLife = 3000, kWarm = 30, kSteps = 300;
  std::mt19937 rng(1);
  Scheduler scheduler(Config(int64_t{num_requests} * (kContext + 128 + kLife) + 65'536,
                             kContext + 128 + kLife, num_requests));
  const int32_t stops[] = {2, 3};
  for (int32_t i = 0; i < num_requests; ++i) {
    const Tokens prompt = Random(rng, static_cast<size_t>(kContext + i * 7 % 64));
    scheduler.Submit(
        {.id = RequestId(i + 1), .prompt = prompt, .max_new_tokens = kLife, .stop_ids = stops}, 1);
  }
  const auto plan = std::make_shared<StepPlan>();
  CommitResult result;
  std::vector<double> plans, commits, sums;
  for (int step = 0; std::ssize(sums) < kSteps;) {
    WalkFar(is_far, kOtherBytes);
    const double plan_us = Time([&] { scheduler.Plan(1, plan); });
    Tokens tokens(plan->num_rows(), 17);
    for (size_t row = 0; row < tokens.size(); ++row) {
      if (plan->output_index[row] < 0) tokens[row] = -1;
    }
    WalkFar(is_far, kOtherBytes);
    const StepOutcome outcome{.tokens = tokens, .accepted = {}, .failed = {}};
    const double commit_us = Time([&] { scheduler.Commit(plan->step_id, outcome, 1, result); });
    if (plan->num_decode_rows < num_requests || ++step <= kWarm) continue;
    plans.push_back(plan_us);
    commits.push_back(commit_us);
    sums.push_back(plan_us + commit_us);
  }
  std::printf("W1 %d %-4s us: plan %.1f, commit %.1f, step %.1f\n", num_requests,
              is_far ? "far" : "near", Median(plans), Median(commits), Median(sums));
}

// W2 and W2d: a turn of 1,000 new tokens, after prompts of 50,000.
void Turns(bool is_delta, bool is_far) {
  constexpr int kSessions = 64, kTurns = 16, kHead = 50'000, kNew = 999;
  std::mt19937 rng(1);
  Engine engine(kSessions * (kHead + (kTurns + 1) * 1000), 140'000);
  std::vector<Tokens> prompts;
  for (int s = 0; s < kSessions; ++s) prompts.push_back(Random(rng, kHead));
  std::vector<double> submits, plans, sums;
  for (int64_t id = 1; id <= kTurns * kSessions; ++id, engine.now_us += 100'000) {
    const int64_t session = (id - 1) % kSessions + 1;
    Tokens& prompt = prompts[session - 1];
    const Tokens fresh = Random(rng, kNew);
    const auto base = engine.scheduler.SessionBase(session);
    if (base) prompt.insert(prompt.end(), fresh.begin(), fresh.end());
    Submission submission{.id = RequestId(id), .prompt = prompt, .max_new_tokens = 1};
    submission.session = session;
    submission.gap_us = 5'000'000 + session;
    WalkFar(is_far);
    const double submit_us = Time([&] {
      if (!is_delta || !base) return engine.scheduler.Submit(submission, engine.now_us);
      submission.prompt = fresh;
      engine.scheduler.SubmitTurn(submission, *base, engine.now_us);
    });
    double prefill_us = 0;
    const double plan_us = engine.Run(prefill_us);
    prompt.push_back(9);
    if (!base) continue;
    submits.push_back(submit_us);
    plans.push_back(plan_us);
    sums.push_back(submit_us + plan_us);
  }
  std::printf("%-4s %-4s us: submit %.1f, first plan %.1f, admission %.1f\n",
              is_delta ? "W2d" : "W2", is_far ? "far" : "near", Median(submits), Median(plans),
              Median(sums));
}

void LongPrompt(int32_t length) {
  std::vector<double> cold, warm;
  for (int rep = 0; rep < 5; ++rep) {
    std::mt19937 rng(rep);
    Engine engine(length + 65'536, length + 4096);
    Tokens prompt = Random(rng, length);
    for (int64_t id = 1; id <= 2; ++id, prompt.insert(prompt.end(), 100, 7)) {
      double prefill_us = 0;
      const double submit_us = Time([&] {
        engine.scheduler.Submit({.id = RequestId(id), .prompt = prompt, .max_new_tokens = 8},
                                engine.now_us);
      });
      const double first_us = engine.Run(prefill_us);
      (id == 1 ? cold : warm).push_back(submit_us + (id == 1 ? prefill_us : first_us));
    }
  }
  std::printf("W3 %d us: cold %.0f, cached %.0f\n", length, Median(cold), Median(warm));
}

void Churn(bool is_far) {
  constexpr int kPrompt = 8192, kFill = 136, kChurn = 300;
  std::mt19937 rng(1);
  Engine engine((1 << 20) + 2048, kPrompt + 512);
  std::vector<double> times;
  for (int64_t id = 1; id <= kFill + kChurn; ++id) {
    WalkFar(is_far, kOtherBytes);
    const Tokens prompt = Random(rng, kPrompt);
    double prefill_us = Time([&] {
      engine.scheduler.Submit({.id = RequestId(id), .prompt = prompt, .max_new_tokens = 1},
                              engine.now_us);
    });
    engine.Run(prefill_us);
    if (id > kFill) times.push_back(prefill_us);
  }
  std::printf("W4 %-4s us: %.1f\n", is_far ? "far" : "near", Median(times));
}

}  // namespace
}  // namespace tokenspeed

// Without names: all workloads.
int main(int argc, char** argv) {
  const std::vector<std::string_view> names(argv + 1, argv + argc);
  const auto is_wanted = [&](std::string_view name) {
    return names.empty() || std::ranges::count(names, name) > 0;
  };
  for (const bool is_far : {false, true}) {
    if (is_wanted("W1")) tokenspeed::Decodes(1024, is_far);
    for (const bool is_delta : {false, true}) {
      if (is_wanted(is_delta ? "W2d" : "W2")) tokenspeed::Turns(is_delta, is_far);
    }
  }
  if (is_wanted("W3")) tokenspeed::LongPrompt(1 << 20);
  for (const bool is_far : {false, true}) {
    if (is_wanted("W4")) tokenspeed::Churn(is_far);
  }
}
