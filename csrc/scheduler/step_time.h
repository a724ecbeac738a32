// How long a step takes, learnt from the steps themselves: recursive least squares over
//
//   t = a + b rows + c prefill tokens + d context tokens + e (prefill tokens x their context)
//
// with a forgetting factor, so that it follows a model that changes. The last feature is what the
// attention of long prompts costs. Until it has seen steps it answers with a weak prior.
// Source: recursive least squares with exponential forgetting, Ljung, System Identification, 11.2.
// Thread: scheduler thread only.
#pragma once

#include <array>
#include <cstdint>

namespace tokenspeed {

// What a step does, in the terms of the model.
struct StepLoad {
  int64_t rows = 0;
  int64_t prefill_tokens = 0;
  int64_t context_tokens = 0;  // read by decode rows
  double prefill_work = 0;     // sum over prefill tokens of their positions
};

class StepTime {
 public:
  StepTime();

  double PredictUs(const StepLoad& load) const;
  // The prediction and twice its uncertainty, which is large for loads unlike those seen.
  double UpperUs(const StepLoad& load) const;
  void Observe(const StepLoad& load, double duration_us);

  // Most prefill tokens, from position `context`, that may be added to `load` so that the upper
  // prediction stays within `limit_us`.
  int64_t MaxPrefill(const StepLoad& load, int64_t context, int64_t most, double limit_us) const;

  // a to e, in us per unit of the load.
  std::array<double, 5> Coefficients() const;
  double noise_us() const { return noise_us_; }
  int64_t num_observations() const { return num_observations_; }

 private:
  static constexpr int kSize = 5;
  using Vector = std::array<double, kSize>;
  static Vector Features(const StepLoad& load);

  Vector weights_;
  std::array<Vector, kSize> covariance_{};
  double noise_us_;  // smoothed size of the errors
  int64_t num_observations_ = 0;
};

}  // namespace tokenspeed
