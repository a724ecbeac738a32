// The latency floor: every running stream gets at least R tokens in any second of its life.
//
// All streams get a token in every step that decodes, so one ring of the times of those steps
// stands for each of them. A step that starts at `t` may take so long that, with decode steps of
// `d` after it, no window of one second holds fewer than R of its tokens:
//
//   t + T + j d <= u(R - j) + 1 s   for j = 0 .. R - 1        u(i): the i-th last token's time
//
// What a plain decode step does not need of T is the slack; prefill may spend it. When d alone is
// more than 1 / R, the streams have outgrown the floor: nobody else is admitted, and it is counted.
// O(R) per step. With no floor it does nothing.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "scheduler/step_time.h"

namespace tokenspeed {

class Floor {
 public:
  static constexpr int64_t kMinChunk = 256;

  explicit Floor(double min_tps);

  bool is_on() const { return need_ > 0; }
  int64_t min_tps() const { return need_; }

  // A step of this load was planned. Steps are committed in order.
  void Planned(const StepLoad& load, int64_t now_us, bool has_decodes);
  // Its results came: learns the duration and notes the tokens' time.
  void Committed(int64_t now_us);
  // Nobody decodes any more: what was before does not count for the next.
  void Idle() { tokens_us_.clear(); }

  // Longest duration of the step to be planned now that keeps the floor, when the decode steps
  // after it take `decode_us`; nullopt when nobody needs it.
  std::optional<double> LimitUs(int64_t now_us, double decode_us) const;

  // Says whether decode steps of this load alone break the floor.
  bool IsOutgrown(const StepLoad& load) const { return model_.PredictUs(load) > period_us_; }
  // Says whether they keep it and leave time for a chunk now and then.
  bool Keeps(const StepLoad& load) const;

  const StepTime& model() const { return model_; }
  int64_t num_violated() const { return num_violated_; }
  void CountViolated() { ++num_violated_; }

 private:
  struct Step {
    StepLoad load;
    int64_t planned_us = 0;
    bool has_decodes = false;
  };
  static constexpr double kMargin = 1.025;  // predictions are this much too short at worst

  int64_t need_;  // tokens in every second: R, rounded up
  double period_us_;
  StepTime model_;
  std::deque<Step> steps_;         // uncommitted
  std::deque<int64_t> tokens_us_;  // newest first, up to need_
  int64_t committed_us_ = 0;
  int64_t num_violated_ = 0;
};

}  // namespace tokenspeed
