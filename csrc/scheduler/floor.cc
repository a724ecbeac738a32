#include "scheduler/floor.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tokenspeed {

constexpr double kWindowUs = 1e6;

Floor::Floor(double min_tps)
    : need_(static_cast<int64_t>(std::ceil(min_tps))),
      period_us_(need_ > 0 ? kWindowUs / static_cast<double>(need_) : 0) {}

void Floor::Planned(const StepLoad& load, int64_t now_us, bool has_decodes) {
  if (is_on()) steps_.push_back({load, now_us, has_decodes});
}

void Floor::Committed(int64_t now_us) {
  if (!is_on()) return;
  TS_CHECK(!steps_.empty(), "a committed step was planned");
  const Step step = steps_.front();
  steps_.pop_front();
  const int64_t started_us = std::max(step.planned_us, committed_us_);
  if (step.load.rows > 0 && now_us > started_us)
    model_.Observe(step.load, static_cast<double>(now_us - started_us));
  committed_us_ = now_us;
  if (!step.has_decodes) return;
  tokens_us_.push_front(now_us);
  if (std::ssize(tokens_us_) > need_) tokens_us_.pop_back();
}

bool Floor::Keeps(const StepLoad& load) const {
  StepLoad with_chunk = load;
  with_chunk.prefill_tokens += kMinChunk;
  const double step_us = model_.PredictUs(load);
  const double chunk_us = model_.PredictUs(with_chunk) - step_us;
  return (static_cast<double>(need_) * step_us + chunk_us) * kMargin <= kWindowUs;
}

std::optional<double> Floor::LimitUs(int64_t now_us, double decode_us) const {
  // Steps on their way end first, and their tokens count.
  double start_us = static_cast<double>(std::max(now_us, committed_us_));
  std::vector<double> ahead;
  if (!steps_.empty()) {
    start_us = static_cast<double>(std::max(steps_.front().planned_us, committed_us_));
    for (const Step& step : steps_) {
      start_us = start_us + model_.PredictUs(step.load) * kMargin;
      if (step.has_decodes) ahead.push_back(start_us);
    }
    start_us = std::max(start_us, static_cast<double>(now_us));
  }
  const auto num_ahead = std::ssize(ahead);
  const int64_t num_known = std::min(num_ahead + std::ssize(tokens_us_), need_);
  if (num_known == 0) return std::nullopt;
  // The i-th last token; a stream that is younger than R tokens counts from its first one.
  const auto last = [&](int64_t i) {
    i = std::min(i, num_known);
    return i <= num_ahead ? ahead[num_ahead - i]
                          : static_cast<double>(tokens_us_[i - 1 - num_ahead]);
  };
  const double decode = decode_us * kMargin;
  double limit = kWindowUs - static_cast<double>(need_ - 1) * decode;  // the window from its end on
  for (int64_t j = 0; j < need_; ++j) {
    limit =
        std::min(limit, last(need_ - j) + kWindowUs - start_us - static_cast<double>(j) * decode);
  }
  return limit / kMargin;
}

}  // namespace tokenspeed
