#include "scheduler/step_time.h"

#include <algorithm>
#include <cmath>

namespace tokenspeed {
namespace {

constexpr double kForget = 0.998;
// Scales that make the features about 1, and a prior in us for each: slower than a mid-size model
// on a large accelerator, so that what was not seen yet is not promised to be fast. Its variance
// lets a handful of steps outweigh it.
constexpr double kRows = 64, kTokens = 1024, kContext = 1 << 20, kWork = 1 << 26;
constexpr std::array<double, 5> kPrior = {5000, 2000, 40000, 50000, 100000};
constexpr double kPriorVariance = 100;
constexpr double kNoiseRate = 0.05, kLeastNoiseUs = 100;
constexpr double kMaxVariance = 1e6;
constexpr int64_t kTrusted = 32;       // observations after which a step can be an outlier
constexpr double kOutlierFactor = 10;  // such a step is a pause of the host, not of the model

}  // namespace

StepTime::StepTime() : weights_(kPrior), noise_us_(10 * kLeastNoiseUs) {
  for (int i = 0; i < kSize; ++i) covariance_[i][i] = kPriorVariance;
}

StepTime::Vector StepTime::Features(const StepLoad& load) {
  return {1.0, static_cast<double>(load.rows) / kRows,
          static_cast<double>(load.prefill_tokens) / kTokens,
          static_cast<double>(load.context_tokens) / kContext, load.prefill_work / kWork};
}

std::array<double, 5> StepTime::Coefficients() const {
  return {weights_[0], weights_[1] / kRows, weights_[2] / kTokens, weights_[3] / kContext,
          weights_[4] / kWork};
}

double StepTime::PredictUs(const StepLoad& load) const {
  const Vector features = Features(load);
  double sum = 0;
  for (int i = 0; i < kSize; ++i) sum += features[i] * weights_[i];
  return std::max(sum, 0.0);
}

double StepTime::UpperUs(const StepLoad& load) const {
  const Vector x = Features(load);
  double variance = 0;
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) variance += x[i] * covariance_[i][j] * x[j];
  }
  return PredictUs(load) + 2 * noise_us_ * std::sqrt(std::max(variance, 0.0));
}

void StepTime::Observe(const StepLoad& load, double duration_us) {
  const Vector x = Features(load);
  const double predicted = PredictUs(load);
  if (num_observations_ > kTrusted && duration_us > kOutlierFactor * (predicted + 1000)) return;
  ++num_observations_;
  noise_us_ += kNoiseRate * (std::abs(duration_us - predicted) - noise_us_);
  noise_us_ = std::max(noise_us_, kLeastNoiseUs);
  Vector px{};
  double denominator = kForget;
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) px[i] += covariance_[i][j] * x[j];
    denominator += x[i] * px[i];
  }
  double linear = 0;
  for (int i = 0; i < kSize; ++i) linear += x[i] * weights_[i];
  for (int i = 0; i < kSize; ++i) {
    weights_[i] += px[i] / denominator * (duration_us - linear);
    for (int j = 0; j < kSize; ++j) {
      covariance_[i][j] -= px[i] * px[j] / denominator;
    }
  }
  // What is not excited must not grow without bound.
  double trace = 0;
  for (int i = 0; i < kSize; ++i) trace += covariance_[i][i];
  if (trace / kForget > kMaxVariance) return;
  for (Vector& row : covariance_) {
    for (double& value : row) value /= kForget;
  }
}

int64_t StepTime::MaxPrefill(const StepLoad& load, int64_t context, int64_t most,
                             double limit_us) const {
  const auto fits = [&](int64_t tokens) {
    StepLoad with = load;
    with.prefill_tokens += tokens;
    with.prefill_work += static_cast<double>(tokens) *
                         (static_cast<double>(context) + static_cast<double>(tokens) / 2);
    return UpperUs(with) <= limit_us;
  };
  int64_t low = 0, high = most;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace tokenspeed
