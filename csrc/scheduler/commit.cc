#include <algorithm>
#include <stdexcept>

#include "scheduler/move.h"

namespace tokenspeed {

CommitResult Scheduler::Commit(int64_t step_id, std::span<const int32_t> tokens,
                               std::span<const bool> failed, int64_t now_us) {
  CommitResult result;
  Commit(step_id, {tokens, {}, failed}, now_us, result);
  return result;
}

void Scheduler::Commit(int64_t step_id, const StepOutcome& outcome, int64_t now_us,
                       CommitResult& result) {
  CheckCommit(step_id, outcome);
  kv_.SetNow(now_us);
  result.Clear();
  Uncommitted step = std::move(uncommitted_.front());
  uncommitted_.pop_front();
  step.copy_windows.clear();
  step.copy_sources.clear();  // before their parents may go
  for (int32_t row = 0; row < step.plan->num_rows(); ++row) {
    const bool has_failed = !outcome.failed.empty() && outcome.failed[row];
    CommitRow(*step.plan, row, outcome.tokens[row], has_failed, result);
  }
  Expire(now_us);
}

void Scheduler::CheckCommit(int64_t step_id, const StepOutcome& outcome) const {
  const auto& [tokens, accepted, failed] = outcome;
  const std::string what = "commit of step " + std::to_string(step_id);
  if (uncommitted_.empty() || uncommitted_.front().plan->step_id != step_id) {
    throw std::invalid_argument(
        what + ": not the oldest uncommitted step; allowed: " +
        (uncommitted_.empty() ? "none" : std::to_string(uncommitted_.front().plan->step_id)) +
        "; commit steps in the order of their plans");
  }
  const StepPlan& plan = *uncommitted_.front().plan;
  const auto num_rows = static_cast<size_t>(plan.num_rows());
  if (!accepted.empty()) {
    throw std::invalid_argument(what + ": accepted has " + std::to_string(accepted.size()) +
                                " entries; allowed: none, no row of the plan has drafts");
  }
  if (tokens.size() != num_rows || (!failed.empty() && failed.size() != num_rows)) {
    throw std::invalid_argument(what + ": " + std::to_string(tokens.size()) + " tokens and " +
                                std::to_string(failed.size()) + " failed flags; allowed: " +
                                std::to_string(num_rows) + " rows; pass one entry per row");
  }
  for (size_t row = 0; row < num_rows; ++row) {
    if (tokens[row] >= 0 || plan.output_index[row] < 0) continue;
    const bool is_read = (failed.empty() || !failed[row]) &&
                         !std::holds_alternative<Draining>(requests_[plan.requests[row]].state);
    if (!is_read) continue;
    throw std::invalid_argument(what + ": row " + std::to_string(row) +
                                " samples, but its token is " + std::to_string(tokens[row]) +
                                "; allowed: 0 or more; mark a failed row in `failed`");
  }
}

void Scheduler::CommitRow(const StepPlan& plan, int32_t row, int32_t token, bool has_failed,
                          CommitResult& result) {
  const RequestIndex index = plan.requests[row];
  Request& request = requests_[index];
  const bool samples = plan.output_index[row] >= 0;
  --request.uncommitted_rows;
  request.ahead -= samples;
  request.is_poisoned |= has_failed;
  if (!request.is_poisoned) {
    AdvanceComputed(index, plan.query_start[row + 1] - plan.query_start[row]);
  }
  if (std::holds_alternative<Draining>(request.state)) {
    DrainIfDone(index);
    return;
  }
  if (has_failed) {
    result.Add(request.id, {}, FinishReason::kError, -1, row);
    End(index, FinishReason::kError);
    return;
  }
  const bool has_ended = samples && CommitToken(index, row, token, result);
  if (!has_ended && request.retract_pending && request.uncommitted_rows == 0) RetractNow(index);
}

// Returns: whether the token ended the request.
bool Scheduler::CommitToken(RequestIndex index, int32_t row, int32_t token, CommitResult& result) {
  Request& request = requests_[index];
  request.tokens.push_back(token);
  ++output_tokens_;
  const int32_t cached = request.cached_reported ? -1 : request.cached_tokens;
  request.cached_reported = true;
  const FinishReason reason = ReasonAfter(request, token);
  result.Add(request.id, {&token, 1}, reason, cached, row);
  if (reason == FinishReason::kNone) return false;
  End(index, reason);
  return true;
}

FinishReason Scheduler::ReasonAfter(const Request& request, int32_t token) const {
  if (request.num_outputs() > request.min_outputs && request.IsStop(token)) {
    return FinishReason::kStop;
  }
  return request.num_outputs() < request.max_outputs ? FinishReason::kNone : FinishReason::kLength;
}

}  // namespace tokenspeed
