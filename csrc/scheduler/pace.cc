#include <algorithm>

#include "scheduler/scheduler.h"

namespace tokenspeed {

bool Scheduler::HasSamples(const StepPlan& plan) {
  return std::ranges::any_of(plan.output_index, [](int32_t index) { return index >= 0; });
}

// After the decode rows are there: what the floor leaves for prefill.
void Scheduler::StartFloor() {
  step_limit_us_.reset();
  has_outgrown_floor_ = false;
  if (!floor_.is_on()) return;
  const auto decodes = [this](RequestIndex index) { return requests_[index].is_decoding; };
  if (std::ranges::none_of(running_, decodes)) {
    floor_.Idle();
    return;
  }
  step_limit_us_ = floor_.LimitUs(now_us_, floor_.model().PredictUs(load_));
  has_outgrown_floor_ = floor_.IsOutgrown(load_);
  if (has_outgrown_floor_) floor_.CountViolated();
}

// Returns how many of `most` prefill tokens may be added to the step, 0 for none. When the streams
// have outgrown the floor, holding prefill back would keep nothing.
int32_t Scheduler::FloorChunk(int32_t context, int32_t most) const {
  const auto smallest = static_cast<int32_t>(std::min<int64_t>(most, Floor::kMinChunk));
  if (has_outgrown_floor_) return smallest;
  if (!step_limit_us_) return most;
  const auto chunk =
      static_cast<int32_t>(floor_.model().MaxPrefill(load_, context, most, *step_limit_us_));
  return chunk < smallest ? 0 : chunk;
}

// Says whether everybody who runs keeps the floor when this request decodes beside them.
bool Scheduler::FloorAdmits(const Request& request) const {
  if (!floor_.is_on() || running_.empty()) return true;
  StepLoad load{.rows = std::ssize(running_) + 1, .context_tokens = request.size()};
  for (const RequestIndex index : running_) load.context_tokens += requests_[index].size();
  return !has_outgrown_floor_ && floor_.Keeps(load);
}

}  // namespace tokenspeed
