// CPU time of admissions without Python: the driver's W2, W2d, W3 and W4 on the C++ scheduler, for
// profiles. "Far" figures walk over 48 MB before each turn, as a process that does other work
// between two turns does. Build and run:
//   c++ -O3 -g -std=c++20 -Icsrc -o build/core_speed benchmarks/control_plane/core_speed.cc
//       csrc/base/*.cc csrc/fsm/*.cc csrc/kv/*.cc csrc/scheduler/*.cc     (one line)
//   build/core_speed [W2] [W2d] [W3] [W4]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
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

SchedulerConfig Config(int64_t pool_tokens, int32_t max_context) {
  return {.block_tokens = 128,
          .groups = {{.name = "full"}},
          .num_physical_blocks = static_cast<int32_t>(pool_tokens / 128 + 1),
          .max_running = 8,
          .max_waiting = 64,
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

void WalkFar(bool is_far) {
  static std::vector<uint8_t> other(48 << 20);
  for (size_t i = 0; is_far && i < other.size(); i += 64) ++other[i];
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

void Churn() {
  constexpr int kPrompt = 8192, kFill = 136, kChurn = 300;
  std::mt19937 rng(1);
  Engine engine((1 << 20) + 2048, kPrompt + 512);
  std::vector<double> times;
  for (int64_t id = 1; id <= kFill + kChurn; ++id) {
    const Tokens prompt = Random(rng, kPrompt);
    double prefill_us = Time([&] {
      engine.scheduler.Submit({.id = RequestId(id), .prompt = prompt, .max_new_tokens = 1},
                              engine.now_us);
    });
    engine.Run(prefill_us);
    if (id > kFill) times.push_back(prefill_us);
  }
  std::printf("W4 us: %.1f\n", Median(times));
}

}  // namespace
}  // namespace tokenspeed

int main(int argc, char** argv) {
  const auto is_asked = [&](const char* name) {
    return argc == 1 || std::any_of(argv + 1, argv + argc, [name](const char* argument) {
             return std::strcmp(argument, name) == 0;
           });
  };
  for (const bool is_far : {false, true}) {
    if (is_asked("W2")) tokenspeed::Turns(false, is_far);
    if (is_asked("W2d")) tokenspeed::Turns(true, is_far);
  }
  if (is_asked("W3")) tokenspeed::LongPrompt(1 << 20);
  if (is_asked("W4")) tokenspeed::Churn();
}
